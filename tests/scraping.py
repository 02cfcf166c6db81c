"""What /metrics says, as numbers."""

import httpx
from prometheus_client.parser import text_string_to_metric_families


class Scrape:
    """One scrape. `numbers["name", "label=value,..."]`, the labels in alphabetical order."""

    def __init__(self, text: str) -> None:
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self.numbers = {
            (
                sample.name,
                ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items())),
            ): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float:
        """A value; KeyError where there is none."""
        return self.numbers[
            f"headrace_{name}", ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
        ]

    def has(self, name: str) -> bool:
        """Whether there is a sample of this name."""
        return any(known == f"headrace_{name}" for known, _ in self.numbers)


def scrape(http: httpx.Client) -> Scrape:
    """Ask once."""
    response = http.get("/metrics")
    assert response.status_code == 200, response.text
    return Scrape(response.text)
