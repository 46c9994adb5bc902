"""Every public object is documented in numpydoc's form."""

import importlib
import inspect
import pkgutil

import pytest
from numpydoc.validate import validate

import sdm_sklearn

# Sections that a short docstring may leave out, and matters of taste.
IGNORED = {
    "ES01",  # no extended summary
    "EX01",  # no examples: asked for below where it counts
    "GL01",  # text starts on the line of the quotes, as in scikit-learn
    "GL02",
    "GL03",
    "GL08",  # checked below
    "PR06",  # "int" or "integer"
    "PR08",  # a description may start with a formula
    "PR09",
    "RT02",  # returned values have names, as in scikit-learn
    "RT03",
    "RT04",
    "RT05",
    "SA01",  # no See Also
    "SA04",
    "SS03",
    "SS05",
    "SS06",
    "YD01",
}


def public_objects():
    names = []
    for module_name in sorted({"sdm_sklearn", *_modules()}):
        module = importlib.import_module(module_name)
        for name in getattr(module, "__all__", []):
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                names.append(f"{module_name}.{name}")
                if inspect.isclass(value) and not issubclass(value, Exception):
                    names += [
                        f"{module_name}.{name}.{method}"
                        for method, function in vars(value).items()
                        if inspect.isfunction(function) and not method.startswith("_")
                    ]
    return names


def _modules():
    for info in pkgutil.walk_packages(sdm_sklearn.__path__, "sdm_sklearn."):
        if not any(part.startswith("_") for part in info.name.split(".")):
            yield info.name


@pytest.mark.parametrize("name", public_objects())
def test_numpydoc(name):
    result = validate(name)
    assert result["docstring"], f"{name} has no docstring"
    errors = [
        f"{code}: {text}" for code, text in result["errors"] if code not in IGNORED
    ]
    assert errors == []


@pytest.mark.parametrize(
    "name", [name for name in public_objects() if name.split(".")[-2].islower()]
)
def test_functions_and_classes_have_an_example(name):
    module, _, attribute = name.rpartition(".")
    value = getattr(importlib.import_module(module), attribute)
    if inspect.isclass(value) and issubclass(value, Exception):
        return
    assert ">>>" in inspect.getdoc(value)
