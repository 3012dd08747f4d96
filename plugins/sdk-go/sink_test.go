package anabranch

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

type settings struct {
	URL  string `json:"url"`
	Most int    `json:"most"`
}

type deliverer struct {
	settings settings
	seen     []Delivered
}

func (d *deliverer) Deliver(delivery Delivery) ([]error, error) {
	d.seen = delivery.Documents
	for _, document := range delivery.Documents {
		switch document.ID {
		case "panic":
			panic("at the document")
		case "short":
			return nil, nil
		case "down":
			return nil, errors.New("the server is down")
		case "cut":
			Log(Warn, "%.7s", "K\u00f6\xff")
			return nil, Retry("cut\xff", "the server says K\xc3")
		}
	}
	return delivery.Each(func(document Delivered) error {
		switch document.ID {
		case "poison":
			return Poison("bad", "it is %s", "bad")
		case "later":
			return RetryAfter(1500*time.Millisecond, "busy", "later")
		case "plain":
			return errors.New("no class")
		}
		return nil
	}), nil
}

func (d *deliverer) Purge(destination string) error {
	if destination == "kept" {
		return Fatal("kept", "it is kept")
	}
	return nil
}

var shelf = Sink[settings, *deliverer]{Name: "shelf", Version: "1.0.0", Open: func(settings settings) (*deliverer, error) {
	if settings.URL == "" {
		return nil, errors.New("there is no url")
	}
	return &deliverer{settings: settings}, nil
}}

func openShelf(t *testing.T) *SinkTest[settings, *deliverer] {
	t.Helper()
	test := TestSink(&shelf)
	if err := test.Open(settings{URL: "http://x"}); err != nil {
		t.Fatal(err)
	}
	return test
}

func failureIn(t *testing.T, err error) Failure {
	t.Helper()
	var failure *Failure
	if !errors.As(err, &failure) {
		t.Fatalf("%v is no failure", err)
	}
	return *failure
}

func TestEachDocumentHasAResult(t *testing.T) {
	test := openShelf(t)
	results, err := test.Deliver(Delivered{"a", "1", `{"x":1}`, 7, 8}, Delivered{Destination: "b", ID: "poison", Body: "{}"},
		Delivered{Destination: "a", ID: "2"}, Delivered{Destination: "a", ID: "later", Body: "{}"},
		Delivered{Destination: "a", ID: "poison", Body: "{}"}, Delivered{Destination: "a", ID: "3", Body: "{}"})
	if err != nil {
		t.Fatal(err)
	}
	seen := test.sink.is.seen
	expect(t, seen[0], Delivered{"a", "1", `{"x":1}`, 7, 8})
	expect(t, seen[2].Removed(), true)
	expect(t, results[0], nil)
	expect(t, failureIn(t, results[1]), Failure{Class: ClassPoison, Code: "bad", Message: "it is bad"})
	expect(t, results[2], nil)
	// Nothing is sent behind it.
	for _, result := range results[3:] {
		expect(t, failureIn(t, result), Failure{ClassRetry, "busy", "later", 1500 * time.Millisecond})
	}
	results, err = test.Deliver(Delivered{Destination: "a", ID: "plain", Body: "{}"})
	expect(t, err, nil)
	expect(t, failureIn(t, results[0]).Class, ClassRetry)
}

func TestABatchMayFailWhole(t *testing.T) {
	for id, expected := range map[string]Failure{
		"panic": {Class: ClassPoison, Code: "exception", Message: "the sink panicked: at the document"},
		"short": {Class: ClassFatal, Code: "results", Message: "the sink gave 0 results for 1 documents"},
		"down":  {Class: ClassRetry, Code: "exception", Message: "the server is down"},
	} {
		_, err := openShelf(t).Deliver(Delivered{Destination: "a", ID: id, Body: "{}"})
		expect(t, failureIn(t, err), expected)
	}
	_, err := TestSink(&shelf).Deliver()
	expect(t, failureIn(t, err).Code, "not-open")
}

func TestFailuresAreUTF8(t *testing.T) {
	test := openShelf(t)
	_, err := test.Deliver(Delivered{Destination: "a", ID: "cut", Body: "{}"})
	failure := failureIn(t, err)
	class, reply, code := replyOf(&failure)
	expect(t, class, uint32(0))
	expect(t, string(reply), "cut\ufffdthe server says K\ufffd")
	expect(t, code, uint32(len("cut\ufffd")))
	expect(t, test.Host.Lines[0], "warn: K\u00f6\ufffd")
	results, err := readResults(appendResults(nil, []error{Poison("\xff", "\xc3")}))
	expect(t, err, nil)
	expect(t, failureIn(t, results[0]), Failure{Class: ClassPoison, Code: "\ufffd", Message: "\ufffd"})
}

func TestSettingsAreToldWithoutTheirValues(t *testing.T) {
	for config, expected := range map[string]string{
		`{"url":"x","uri":"marker-4711"}`:  "`config` of the sink: unknown field \"uri\"",
		`{"url":"x","most":"marker-4711"}`: "`config` of the sink: `most` is a string, and int is wanted",
		`{"url":4711}`:                     "`config` of the sink: `url` is a number, and string is wanted",
		`{}`:                               "there is no url",
	} {
		failure := failureIn(t, TestSink(&shelf).OpenJSON(config))
		expect(t, failure.Class, ClassFatal)
		expect(t, failure.Message, expected)
	}
}

func TestADestinationIsEmptied(t *testing.T) {
	test := openShelf(t)
	expect(t, test.Purge("a"), nil)
	expect(t, failureIn(t, test.Purge("kept")).Code, "kept")
}

// shown is a sink that builds beside what its readers see.
type shown struct {
	deliverer
	seen   string
	places []string
}

func (s *shown) Deliver(delivery Delivery) ([]error, error) {
	if delivery.Place != "" && !slices.Contains(s.places, delivery.Place) {
		return nil, Fatal("place-gone", "there is no %s", delivery.Place)
	}
	return delivery.Accepted(), nil
}

func (s *shown) Begin(destination, place string) (bool, error) {
	if destination == "panic" {
		panic("at the place")
	}
	s.places = append(s.places, place)
	return s.seen != "", nil
}

func (s *shown) Switch(destination, place string) error {
	if !slices.Contains(s.places, place) {
		return Fatal("place-gone", "there is no %s", place)
	}
	s.seen, s.places = place, []string{place}
	return nil
}

func (s *shown) Abandon(destination, place string) error {
	if destination == "down" {
		return errors.New("the server is down")
	}
	s.places = slices.DeleteFunc(s.places, func(other string) bool { return other == place })
	return nil
}

func TestADestinationIsBuiltBesideWhatReadersSee(t *testing.T) {
	sink := Sink[settings, *shown]{Open: func(settings) (*shown, error) { return &shown{}, nil }}
	test := TestSink(&sink)
	_, err := test.Begin("a", "1-a")
	expect(t, failureIn(t, err).Code, "not-open")
	expect(t, test.Open(settings{}), nil)
	seen, err := test.Begin("a", "1-a")
	expect(t, seen, false)
	expect(t, err, nil)
	expect(t, test.Switch("a", "1-a"), nil)
	seen, err = test.Begin("a", "2-b")
	expect(t, seen, true)
	expect(t, err, nil)
	document := Delivered{Destination: "a", ID: "1", Body: "{}"}
	for _, place := range []string{"", "1-a", "2-b"} {
		results, err := test.DeliverTo(place, document)
		expect(t, err, nil)
		expect(t, results[0], nil)
	}
	expect(t, test.Abandon("a", "2-b"), nil)
	_, err = test.DeliverTo("2-b", document)
	expect(t, failureIn(t, err), Failure{Class: ClassFatal, Code: "place-gone", Message: "there is no 2-b"})
	expect(t, failureIn(t, test.Switch("a", "2-b")).Class, ClassFatal)
	expect(t, failureIn(t, test.Abandon("down", "2-b")), Failure{Class: ClassRetry, Code: "exception", Message: "the server is down"})
	_, err = test.Begin("panic", "3-c")
	expect(t, failureIn(t, err), Failure{Class: ClassRetry, Code: "exception", Message: "the sink panicked: at the place"})
}

func TestASinkThatCannotBuildBesideSaysSo(t *testing.T) {
	_, err := openShelf(t).Begin("a", "1-a")
	expect(t, failureIn(t, err).Message, "the sink was not opened, or cannot build beside what readers see")
}

func TestASinkThatBuildsBesideIsExportedAsOne(t *testing.T) {
	var sink Sink[settings, *shown]
	for said, export := range map[string]func(){
		"ExportSink":        func() { ExportSink(&sink) },
		"ExportPurgingSink": func() { ExportPurgingSink(&sink) },
	} {
		func() {
			defer func() {
				expect(t, recover(), any("*anabranch.shown has methods Begin, Switch and Abandon, which "+said+
					" does not export: use ExportSwitchingSink"))
			}()
			export()
		}()
	}
	ExportSwitchingSink(&sink)
	exportedSink = nil
}

func TestASinkThatPurgesIsExportedAsOne(t *testing.T) {
	defer func() {
		exportedSink = nil
		expect(t, recover(), any("*anabranch.deliverer has a method Purge, which ExportSink does not export: use ExportPurgingSink"))
	}()
	ExportPurgingSink(&shelf)
	ExportSink(&shelf)
}

func TestASinkSaysThatItIsOne(t *testing.T) {
	said, err := TestSink(&shelf).Describe()
	if err != nil || !strings.Contains(said, `"name":"shelf","version":"1.0.0","kind":"sink","encoding":"msgpack"`) {
		t.Error(said, err)
	}
}

func TestDamagedDeliveriesAreTold(t *testing.T) {
	whole := delivery("2-b", []Delivered{{"a", "1", `{}`, 7, 8}, {Destination: "a", ID: "2"}})
	test := openShelf(t)
	for size := range len(whole) {
		if _, failure := test.sink.deliver(whole[:size:size], nil); failure == nil {
			t.Errorf("cut at %d", size)
		}
		changed := append([]byte{}, whole...)
		for value := range 256 {
			changed[size] = byte(value)
			test.sink.deliver(changed, nil)
		}
	}
}
