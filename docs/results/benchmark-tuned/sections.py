"""Sections of the tuned benchmark's page: one per data set, set of architectures and split."""

from pathlib import Path

from publish_runs import read_published
from tables import methods

HERE = Path(__file__).parent
DATASETS = {
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10 (JPEG copies)",
    "digits": "digits",
}
SPLITS = {"k-classes-grouped": "two groups of classes", "dirichlet": "Dirichlet 0.1"}


def sections() -> str:
    """Return the heading, the sources and the table of every tuned comparison."""
    tuned = (file.name.removesuffix("-tuning.json") for file in HERE.glob("*-tuning.json"))
    return "\n\n".join(map(_section, sorted(tuned, reverse=True)))


def _section(name: str) -> str:
    published = HERE / f"{name}.json"
    if not published.exists():
        return f"## {name}\n\nOnly the [tuning]({name}-tuning.json) has been run."
    config = read_published(published)[0].config
    models = config["models"].split(",")
    architectures = "one architecture" if len(models) == 1 else "several architectures in turn"
    title = f"{DATASETS[config['dataset']]}, {SPLITS[config['partition']]}, {architectures}"
    sources = (
        f"[every run]({name}.json), [validation accuracies of the tuning]({name}-tuning.json), "
        f"selected settings: `conf/compare/chosen/{name}.toml`"
    )
    return f"## {title}\n\nModels: `{config['models']}`; {sources}.\n\n{methods(published)}"
