//go:build !wasip1

package anabranch

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// Tests of a sink, natively: whole batches as the host sends them, results as it reads them. Nothing of this is in a
// component.

// SinkTest is a sink that is tested; see [TestSink].
type SinkTest[S any, D Deliverer] struct {
	// Host answers what the sink asks of it.
	Host *Host
	sink opened[S, D]
}

// TestSink begins with a sink that is not open yet:
//
//	test := anabranch.TestSink(&sink)
//	err := test.Open(Settings{URL: "http://x"})
//	results, err := test.Deliver(anabranch.Delivered{Destination: "items", ID: "1", Body: "{}"})
func TestSink[S any, D Deliverer](sink *Sink[S, D]) *SinkTest[S, D] {
	return &SinkTest[S, D]{Host: newHost(), sink: opened[S, D]{sink: sink}}
}

// Open opens it with settings, which go through JSON as the host's do.
func (t *SinkTest[S, D]) Open(settings S) error {
	text, err := json.Marshal(settings)
	if err != nil {
		return err
	}
	return t.OpenJSON(string(text))
}

// OpenJSON opens it with what stands in `[sink.<name>] config`, as JSON.
func (t *SinkTest[S, D]) OpenJSON(settings string) error {
	defer bind(t.Host)()
	return errorOf(t.sink.open([]byte(settings)))
}

// Deliver delivers documents as one batch: a result for each, or why the batch failed whole.
func (t *SinkTest[S, D]) Deliver(documents ...Delivered) ([]error, error) {
	return t.DeliverTo("", documents...)
}

// DeliverTo delivers documents that are for a place.
func (t *SinkTest[S, D]) DeliverTo(place string, documents ...Delivered) ([]error, error) {
	defer bind(t.Host)()
	reply, failure := t.sink.deliver(delivery(place, documents), nil)
	if failure != nil {
		return nil, failure
	}
	return readResults(reply)
}

// Purge empties a destination.
func (t *SinkTest[S, D]) Purge(destination string) error {
	defer bind(t.Host)()
	return errorOf(t.sink.purge(destination))
}

// Begin makes an empty place beside what readers see; it says whether they see anything.
func (t *SinkTest[S, D]) Begin(destination, place string) (bool, error) {
	defer bind(t.Host)()
	seen, failure := t.sink.begin(destination, place)
	return seen, errorOf(failure)
}

// Switch shows a place to the readers of its destination.
func (t *SinkTest[S, D]) Switch(destination, place string) error {
	defer bind(t.Host)()
	return errorOf(t.sink.switchTo(destination, place))
}

// Abandon removes a place that is of no use any more.
func (t *SinkTest[S, D]) Abandon(destination, place string) error {
	defer bind(t.Host)()
	return errorOf(t.sink.abandon(destination, place))
}

// Describe is what the sink says of itself: JSON.
func (t *SinkTest[S, D]) Describe() (string, error) { return t.sink.describe() }

func delivery(place string, documents []Delivered) []byte {
	destinations := []string{}
	for _, document := range documents {
		if !slices.Contains(destinations, document.Destination) {
			destinations = append(destinations, document.Destination)
		}
	}
	keys := 7
	if place != "" {
		keys = 8
	}
	out := appendMap(nil, keys)
	out = appendInteger(appendText(out, "v"), 1)
	out = appendArray(appendText(out, "what a newer host sends"), 0)
	out = appendText(appendText(out, "entity"), "public.test")
	out = appendText(appendText(out, "origin"), "stream")
	out = appendInteger(appendText(out, "generation"), 1)
	if place != "" {
		out = appendText(appendText(out, "place"), place)
	}
	out = appendArray(appendText(out, "destinations"), len(destinations))
	for _, name := range destinations {
		out = appendText(out, name)
	}
	out = appendArray(appendText(out, "documents"), len(documents))
	for _, document := range documents {
		out = appendArray(out, 8)
		operation := "upsert"
		if document.Removed() {
			operation = "delete"
		}
		out = appendText(appendText(out, operation), document.ID)
		out = appendInteger(out, int64(slices.Index(destinations, document.Destination)))
		if document.Removed() {
			out = append(out, 0xc0)
		} else {
			out = binary.BigEndian.AppendUint32(append(out, 0xc6), uint32(len(document.Body)))
			out = append(out, document.Body...)
		}
		out = appendInteger(appendInteger(out, int64(document.LSN)), document.CommitTimeUS)
		out = appendText(appendMap(out, 0), "what a newer host sends")
	}
	return out
}

func readResults(reply []byte) ([]error, error) {
	r := &reader{data: reply}
	results := make([]error, r.expect(kindArray).count)
	for at := range results {
		elements := r.expect(kindArray).count
		if r.expect(kindInteger).bits == 0 {
			continue
		}
		class, _ := r.text()
		failure := &Failure{Class: Class(class)}
		failure.Code, _ = r.text()
		failure.Message, _ = r.text()
		if elements > 4 {
			failure.After = time.Duration(r.expect(kindInteger).bits) * time.Millisecond
		}
		results[at] = failure
	}
	if r.bad || r.at != len(reply) {
		return nil, fmt.Errorf("the reply cannot be read")
	}
	return results, nil
}
