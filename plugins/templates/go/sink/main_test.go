package main

import (
	"errors"
	"slices"
	"testing"

	anabranch "anabranch-sdk"
)

// deliver delivers to a service that has nothing yet: what became of the documents, and what it was sent.
func deliver(t *testing.T, documents ...anabranch.Delivered) (results []error, sent []string, err error) {
	t.Helper()
	test := anabranch.TestSink(&sink)
	test.Host.HTTP = func(request anabranch.Request) (*anabranch.Response, error) {
		sent = append(sent, request.Method+" "+request.URL)
		status := map[string]int{`"busy"`: 503, `"bad"`: 422, "": 404}[string(request.Body)]
		return &anabranch.Response{Status: max(status, 201)}, nil
	}
	if err := test.Open(Settings{URL: "https://x"}); err != nil {
		t.Fatal(err)
	}
	for at := range documents {
		documents[at].Destination = "items"
	}
	results, err = test.Deliver(documents...)
	return
}

func classOf(t *testing.T, err error) anabranch.Class {
	t.Helper()
	var failure *anabranch.Failure
	if !errors.As(err, &failure) {
		t.Fatalf("%v is no failure", err)
	}
	return failure.Class
}

func TestEachDocumentHasAResult(t *testing.T) {
	results, sent, err := deliver(t, anabranch.Delivered{ID: "1", Body: "{}"}, anabranch.Delivered{ID: "2", Body: `"bad"`},
		anabranch.Delivered{ID: "a/ü"}, anabranch.Delivered{ID: ".."})
	if err != nil || results[0] != nil || results[2] != nil || classOf(t, results[1]) != anabranch.ClassPoison ||
		classOf(t, results[3]) != anabranch.ClassPoison {
		t.Error(results, err)
	}
	expected := []string{"PUT https://x/items/1", "PUT https://x/items/2", "DELETE https://x/items/a%2F%C3%BC"}
	if !slices.Equal(sent, expected) {
		t.Error(sent)
	}
}

func TestNothingIsSentBehindWhatHasToComeAgain(t *testing.T) {
	_, sent, err := deliver(t, anabranch.Delivered{ID: "1", Body: `"busy"`}, anabranch.Delivered{ID: "2", Body: "{}"})
	if classOf(t, err) != anabranch.ClassRetry || !slices.Equal(sent, []string{"PUT https://x/items/1"}) {
		t.Error(sent, err)
	}
}

func TestAMisspeltSettingIsRefused(t *testing.T) {
	if err := anabranch.TestSink(&sink).OpenJSON(`{"url":"https://x","uri":""}`); err == nil {
		t.Error("it was taken")
	}
}
