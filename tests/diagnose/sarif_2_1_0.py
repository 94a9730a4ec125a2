"""The part of SARIF 2.1.0 (OASIS Standard, 2020) that is written here, strictly: unknown properties are refused."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Message(_Strict):  # section 3.11
    text: str = Field(min_length=1)


class ReportingDescriptor(_Strict):  # 3.49
    id: str
    shortDescription: Message  # noqa: N815 (names of the standard)


class Driver(_Strict):  # 3.19
    name: str = Field(min_length=1)
    version: str
    rules: list[ReportingDescriptor]


class Tool(_Strict):  # 3.18
    driver: Driver


class ArtifactLocation(_Strict):  # 3.4
    uri: str = Field(pattern=r"^(?:[a-z][a-z0-9+.-]*:)?[^\s\\]+$")


class Region(_Strict):  # 3.30
    startLine: int = Field(ge=1)  # noqa: N815


class PhysicalLocation(_Strict):  # 3.29
    artifactLocation: ArtifactLocation  # noqa: N815
    region: Region


class LogicalLocation(_Strict):  # 3.33
    name: str
    kind: Literal["function"]


class Location(_Strict):  # 3.28
    physicalLocation: PhysicalLocation  # noqa: N815
    logicalLocations: list[LogicalLocation]  # noqa: N815


class Result(_Strict):  # 3.27
    ruleId: str  # noqa: N815
    ruleIndex: int = Field(ge=0)  # noqa: N815
    level: Literal["none", "note", "warning", "error"]
    message: Message
    locations: list[Location] = []
    properties: dict[str, Any]


class Run(_Strict):  # 3.14
    tool: Tool
    results: list[Result]

    @model_validator(mode="after")
    def _rules_are_unique(self):
        ids = [rule.id for rule in self.tool.driver.rules]
        assert len(ids) == len(set(ids))
        return self


class Log(_Strict):  # 3.13
    schema_: str = Field(alias="$schema")
    version: Literal["2.1.0"]
    runs: list[Run]
