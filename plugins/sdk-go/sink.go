package anabranch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
)

// Sink is a plugin that delivers documents; how one has to behave is in docs/plugins/sinks.md.
//
// S is what the settings are read into, as by json.Unmarshal; names that it has no field for are refused. D delivers: one
// for each instance of the plugin.
type Sink[S any, D Deliverer] struct {
	// Name is the plugin's; the last part of the module's path if it is empty.
	Name string
	// Version is strict semver. Another one rebuilds every mapping that delivers through the sink.
	Version string
	// Open begins with settings. It is called once on each instance, before anything else: be quick. An error without a
	// class is fatal.
	Open func(settings S) (D, error)
}

// Deliverer delivers batches.
type Deliverer interface {
	// Deliver delivers a batch, in order, and gives one result for each document, in order: nil, which means that it is
	// durable, or why it was not accepted. Poison concerns the document alone; retry and fatal send the whole batch again.
	// The second error means that nothing is known of any document. An error without a class is retry; a panic is poison, as
	// a crash is in any language, and the batch is split until its culprit is alone.
	Deliver(delivery Delivery) ([]error, error)
}

// Purger is a Deliverer that can empty a destination.
type Purger interface {
	Deliverer
	// Purge removes every document of a destination; one that does not exist is empty already.
	Purge(destination string) error
}

// Switcher is a Purger that can build a destination beside what its readers see, and show it to them at once.
//
// The host begins a place for each rebuild, fills it ([Delivery].Place says what is for it), and switches once it is whole. Each
// method may be called again with the same words, on another instance, too, and comes to the same.
type Switcher interface {
	Purger
	// Begin makes an empty place for a destination; one of that name that is there is emptied. It says whether readers see
	// anything under the destination now: where not, the host switches at once.
	Begin(destination, place string) (bool, error)
	// Switch shows the place to the readers of the destination, in one step, and removes all other places of it. A place that is
	// not there any more is Fatal.
	Switch(destination, place string) error
	// Abandon removes a place that is of no use any more. One that readers see stays, and one that is not there is removed
	// already.
	Abandon(destination, place string) error
}

// Delivery are documents of one mapping, in commit order. Several may have the same id: the last one wins.
type Delivery struct {
	// Entity is the table whose rows made them, as `schema.table`.
	Entity   string
	Backfill bool
	// Generation counts the rebuilds of the mapping.
	Generation int64
	// Place is the one that all of it is for, where a [Switcher] builds their destination, which is one then. Empty where they are
	// for what readers see.
	Place     string
	Documents []Delivered
}

// Delivered is a document, to be put under its id whether one is there or not, or the end of one.
type Delivered struct {
	Destination string
	ID          string
	// Body is the document; empty if the id is to be removed, whether it is there or not.
	Body JSON
	// LSN is the commit's position; 0 where a backfill read the row.
	LSN          uint64
	CommitTimeUS int64
}

// Removed is whether the id is to be removed.
func (d Delivered) Removed() bool { return d.Body == "" }

// Each gives one result for each document, by a function. It stops at a failure that is not poison, which those behind it
// share: the whole batch comes again, and what is sent before it does could overtake.
func (d Delivery) Each(result func(document Delivered) error) []error {
	results := make([]error, len(d.Documents))
	for at, document := range d.Documents {
		results[at] = result(document)
		if results[at] == nil || failureOr(results[at], ClassRetry).Class == ClassPoison {
			continue
		}
		for behind := at + 1; behind < len(results); behind++ {
			results[behind] = results[at]
		}
		break
	}
	return results
}

// Accepted says that every document is durable.
func (d Delivery) Accepted() []error { return make([]error, len(d.Documents)) }

// SinkPlugin is a Sink of any settings.
type SinkPlugin interface {
	describe() (string, error)
	open(settings []byte) *Failure
	deliver(batch []byte, out []byte) ([]byte, *Failure)
	purge(destination string) *Failure
	begin(destination, place string) (bool, *Failure)
	switchTo(destination, place string) *Failure
	abandon(destination, place string) *Failure
}

// opened is a Sink and what it opened.
type opened[S any, D Deliverer] struct {
	sink   *Sink[S, D]
	is     D
	isOpen bool
}

var exportedSink SinkPlugin

// ExportSink makes a sink that of the component. Call it once, in the main package's `init`. It panics where the sink is a
// [Purger], or has the methods of a [Switcher]: nobody would call them.
func ExportSink[S any, D Deliverer](sink *Sink[S, D]) {
	unexported[D, switches]("ExportSink", "methods Begin, Switch and Abandon", "ExportSwitchingSink")
	unexported[D, Purger]("ExportSink", "a method Purge", "ExportPurgingSink")
	markSink()
	exportedSink = &opened[S, D]{sink: sink}
}

// ExportPurgingSink does the same with one that can empty a destination too.
func ExportPurgingSink[S any, D Purger](sink *Sink[S, D]) {
	unexported[D, switches]("ExportPurgingSink", "methods Begin, Switch and Abandon", "ExportSwitchingSink")
	markSink()
	markPurge()
	exportedSink = &opened[S, D]{sink: sink}
}

// ExportSwitchingSink does the same with one that can also build a destination beside what its readers see.
func ExportSwitchingSink[S any, D Switcher](sink *Sink[S, D]) {
	markSink()
	markPurge()
	markGenerations()
	exportedSink = &opened[S, D]{sink: sink}
}

// switches is what a Switcher has beside the rest.
type switches interface {
	Begin(destination, place string) (bool, error)
	Switch(destination, place string) error
	Abandon(destination, place string) error
}

// unexported panics where a type has what is not exported.
func unexported[D, Has any](by, has, instead string) {
	if kind := reflect.TypeFor[D](); kind.Implements(reflect.TypeFor[Has]()) {
		panic(fmt.Sprintf("%s has %s, which %s does not export: use %s", kind, has, by, instead))
	}
}

func (o *opened[S, D]) describe() (string, error) {
	if o.sink.Open == nil {
		return "", errors.New("the sink has no Open")
	}
	return describe(description{Name: o.sink.Name, Version: o.sink.Version, Kind: "sink"})
}

func (o *opened[S, D]) open(settings []byte) (failure *Failure) {
	defer recovered(&failure, ClassFatal)
	var into S
	if err := settingsInto(settings, &into); err != nil {
		return err
	}
	is, err := o.sink.Open(into)
	if err != nil {
		return failureOr(err, ClassFatal)
	}
	o.is, o.isOpen = is, true
	return nil
}

// settingsInto tells names, and no values: one may be a secret.
func settingsInto(settings []byte, into any) *Failure {
	decode := json.NewDecoder(bytes.NewReader(settings))
	decode.DisallowUnknownFields()
	err := decode.Decode(into)
	if err == nil {
		return nil
	}
	what := "a value has the wrong type"
	var typed *json.UnmarshalTypeError
	switch {
	case errors.As(err, &typed):
		kind, _, _ := strings.Cut(typed.Value, " ")
		what = fmt.Sprintf("`%s` is a %s, and %s is wanted", typed.Field, kind, typed.Type)
	case strings.HasPrefix(err.Error(), "json: unknown field"):
		what = strings.TrimPrefix(err.Error(), "json: ")
	case errors.Is(err, io.EOF):
		what = "there are none"
	}
	return &Failure{Class: ClassFatal, Code: "settings", Message: "`config` of the sink: " + what}
}

func (o *opened[S, D]) deliver(batch []byte, out []byte) (reply []byte, failure *Failure) {
	defer recovered(&failure, ClassPoison)
	if !o.isOpen {
		return nil, &Failure{Class: ClassFatal, Code: "not-open", Message: "the sink was not opened"}
	}
	delivery, failure := readDelivery(batch)
	if failure != nil {
		return nil, failure
	}
	results, err := o.is.Deliver(delivery)
	if err != nil {
		return nil, failureOr(err, ClassRetry)
	}
	if len(results) != len(delivery.Documents) {
		return nil, &Failure{Class: ClassFatal, Code: "results",
			Message: fmt.Sprintf("the sink gave %d results for %d documents", len(results), len(delivery.Documents))}
	}
	return appendResults(out, results), nil
}

func (o *opened[S, D]) purge(destination string) (failure *Failure) {
	defer recovered(&failure, ClassRetry)
	purger, ok := any(o.is).(Purger)
	if !o.isOpen || !ok {
		return &Failure{Class: ClassFatal, Code: "not-open", Message: "the sink was not opened, or cannot purge"}
	}
	if err := purger.Purge(destination); err != nil {
		return failureOr(err, ClassRetry)
	}
	return nil
}

func (o *opened[S, D]) begin(destination, place string) (seen bool, failure *Failure) {
	failure = o.beside(func(is switches) (err error) {
		seen, err = is.Begin(destination, place)
		return err
	})
	return seen && failure == nil, failure
}

func (o *opened[S, D]) switchTo(destination, place string) *Failure {
	return o.beside(func(is switches) error { return is.Switch(destination, place) })
}

func (o *opened[S, D]) abandon(destination, place string) *Failure {
	return o.beside(func(is switches) error { return is.Abandon(destination, place) })
}

// beside calls a sink that can build beside what readers see.
func (o *opened[S, D]) beside(call func(switches) error) (failure *Failure) {
	defer recovered(&failure, ClassRetry)
	is, ok := any(o.is).(switches)
	if !o.isOpen || !ok {
		return &Failure{Class: ClassFatal, Code: "not-open",
			Message: "the sink was not opened, or cannot build beside what readers see"}
	}
	if err := call(is); err != nil {
		return failureOr(err, ClassRetry)
	}
	return nil
}

// recovered makes a failure of a panic.
func recovered(failure **Failure, class Class) {
	if raised := recover(); raised != nil {
		*failure = &Failure{Class: class, Code: "exception", Message: fmt.Sprintf("the sink panicked: %v", raised)}
	}
}

func readDelivery(batch []byte) (Delivery, *Failure) {
	r := &reader{data: batch}
	var delivery Delivery
	var destinations []string
	for range r.expect(kindMap).count {
		key, _ := r.text()
		switch key {
		case "v":
			if failure := r.version(); failure != nil {
				return delivery, failure
			}
		case "entity":
			delivery.Entity, _ = r.text()
		case "origin":
			origin, _ := r.text()
			delivery.Backfill = origin == "backfill"
		case "generation":
			delivery.Generation = int64(r.expect(kindInteger).bits)
		case "place":
			delivery.Place, _ = r.text()
		case "destinations":
			destinations = make([]string, r.expect(kindArray).count)
			for at := range destinations {
				destinations[at], _ = r.text()
			}
		case "documents":
			// The last key.
			delivery.Documents = make([]Delivered, r.expect(kindArray).count)
			for at := range delivery.Documents {
				r.delivered(destinations, &delivery.Documents[at])
			}
			if r.bad {
				return delivery, malformed
			}
			return delivery, nil
		default:
			r.skip(r.next())
		}
		if r.bad {
			break
		}
	}
	return delivery, malformed
}

func (r *reader) delivered(destinations []string, document *Delivered) {
	elements := r.expect(kindArray).count
	operation, _ := r.text()
	document.ID, _ = r.text()
	destination := r.expect(kindInteger).bits
	body := r.next()
	document.LSN = r.expect(kindInteger).bits
	document.CommitTimeUS = int64(r.expect(kindInteger).bits)
	for range elements - 6 {
		r.skip(r.next())
	}
	if r.bad || elements < 7 || destination >= uint64(len(destinations)) {
		r.bad = true
		return
	}
	document.Destination = destinations[destination]
	switch {
	case operation == "upsert" && body.kind == kindBytes:
		document.Body = JSON(body.text())
	case operation == "delete" && body.kind == kindNull:
	default:
		r.bad = true
	}
}

func appendResults(out []byte, results []error) []byte {
	out = appendArray(out, len(results))
	for _, result := range results {
		if result == nil {
			out = append(out, 0x91, 0)
			continue
		}
		failure := failureOr(result, ClassRetry)
		elements := byte(0x94)
		if failure.After > 0 {
			elements = 0x95
		}
		out = append(out, elements, 1)
		out = appendFailure(out, failure)
		if failure.After > 0 {
			out = appendInteger(out, failure.After.Milliseconds())
		}
	}
	return out
}
