"""The sections of the comparison's page: one for each data set, architectures and split."""

from pathlib import Path

from publish_runs import read_published
from tables import methods

HERE = Path(__file__).parent
DATASETS = {"fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "digits": "digits"}
SPLITS = {"k-classes-grouped": "two groups of classes", "dirichlet": "Dirichlet 0.1"}


def sections() -> str:
    """Return heading, sources and table of every comparison that has been tuned."""
    tuned = (file.name.removesuffix("-tuning.json") for file in HERE.glob("*-tuning.json"))
    return "\n\n".join(map(_section, sorted(tuned, reverse=True)))


def _section(name: str) -> str:
    published = HERE / f"{name}.json"
    if not published.exists():
        return f"## {name}\n\nThe settings are [tuned]({name}-tuning.json), and not yet run."
    config = read_published(published)[0].config
    models = config["models"].split(",")
    architectures = "one architecture" if len(models) == 1 else "several architectures in turn"
    title = f"{DATASETS[config['dataset']]}, {SPLITS[config['partition']]}, {architectures}"
    sources = (
        f"[every run]({name}.json), [what tuning reached]({name}-tuning.json), "
        f"chosen settings: `conf/compare/chosen/{name}.toml`"
    )
    return f"## {title}\n\nModels: `{config['models']}`; {sources}.\n\n{methods(published)}"
