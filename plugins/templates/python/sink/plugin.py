"""Puts each document under a URL of its own, and removes it from there."""

from dataclasses import dataclass
from urllib.parse import quote

from anabranch_sdk import Batch, Delivered, Failure, SinkDocument, http, sink


@dataclass
class Settings:
    """`config` of the `[sink.…]` table. A name that is not here is refused."""

    #: Where the service is.
    url: str


class Items:
    # There are several instances, and each is made anew: be quick.
    def __init__(self, settings: Settings) -> None:
        self.url = settings.url

    # One result for each document, in order. Behind one that has to come again nothing is tried: the whole batch comes.
    def deliver(self, batch: Batch) -> list[Delivered]:
        return batch.each(self.put)

    def put(self, document: SinkDocument) -> None:
        if document.id in (".", ".."):
            # At the end of a URL these are the folder.
            raise Failure.poison("id", "an id of dots is no part of a URL")
        url = f"{self.url}/{quote(document.destination, safe='')}/{quote(document.id, safe='')}"
        # `body` is the document's text; None: the id is to be removed.
        if document.body is None:
            answer = http.request("DELETE", url)
        else:
            answer = http.request("PUT", url, body=document.body, headers={"content-type": "application/json"})
        if answer.ok or (answer.status == 404 and document.body is None):
            return  # it is durable
        if answer.status in (400, 422):
            # This document can never work; the others can.
            raise Failure.poison("refused", "the service refused the document")
        raise Failure.retry("busy", f"the service answered {answer.status}")


plugin = sink(Items, settings=Settings)
