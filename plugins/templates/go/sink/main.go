// Puts each document under a URL of its own, and removes it from there.
package main

import (
	"net/url"

	anabranch "anabranch-sdk"
)

// Settings are `config` of the `[sink.…]` table. A name that is not here is refused.
type Settings struct {
	// URL is where the service is.
	URL string `json:"url"`
}

// Items is an open sink: there are several instances.
type Items struct{ Settings }

func open(settings Settings) (*Items, error) {
	if settings.URL == "" {
		return nil, anabranch.Fatal("settings", "`config` of the sink has no `url`")
	}
	return &Items{settings}, nil
}

// Deliver gives one result for each document, in order.
func (s *Items) Deliver(delivery anabranch.Delivery) ([]error, error) {
	results := delivery.Accepted() // nil: it is durable
	for at, document := range delivery.Documents {
		if document.ID == "." || document.ID == ".." {
			// At the end of a URL these are the folder.
			results[at] = anabranch.Poison("id", "an id of dots is no part of a URL")
			continue
		}
		request := anabranch.Request{
			Method:  "PUT",
			URL:     s.URL + "/" + url.PathEscape(document.Destination) + "/" + url.PathEscape(document.ID),
			Headers: map[string]string{"content-type": "application/json"},
			Body:    []byte(document.Body),
		}
		if document.Removed() {
			request.Method, request.Headers = "DELETE", nil
		}
		response, err := anabranch.Send(request)
		switch {
		case err != nil:
			return nil, err // nothing is known of any document: all come again
		case response.Status/100 == 2, document.Removed() && response.Status == 404:
		case response.Status == 400, response.Status == 422:
			// This document can never work; the others can.
			results[at] = anabranch.Poison("refused", "the service refused the document")
		default:
			// Nothing goes on behind it: the whole batch comes again.
			return nil, anabranch.Retry("busy", "the service answered %d", response.Status)
		}
	}
	return results, nil
}

var sink = anabranch.Sink[Settings, *Items]{Version: "0.1.0", Open: open}

func init() { anabranch.ExportSink(&sink) }

func main() {}
