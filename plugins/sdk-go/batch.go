package anabranch

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unsafe"
)

// A whole batch, from the host's bytes to the reply's: wit/v1/payload-msgpack.md.

var malformed = &Failure{Class: ClassFatal, Code: "batch", Message: "the host's batch is malformed"}

func (t *Transform[R]) run(batch []byte, out []byte) ([]byte, *Failure) {
	layout, err := t.prepared()
	if err != nil {
		return nil, &Failure{Class: ClassFatal, Code: "row", Message: err.Error()}
	}
	r := &reader{data: batch}
	var columns []string
	var origin string
	for range r.expect(kindMap).count {
		key, _ := r.text()
		switch key {
		case "v":
			if failure := r.version(); failure != nil {
				return nil, failure
			}
		case "relation":
			columns = r.relation()
		case "origin":
			origin, _ = r.text()
		case "changes":
			// The last key.
			if r.bad || columns == nil {
				return nil, malformed
			}
			if layout.columns != nil && !slices.Equal(columns, layout.columns) {
				return nil, &Failure{Class: ClassFatal, Code: "columns", Message: fmt.Sprintf("the host sent the columns %s; asked were %s",
					strings.Join(columns, ", "), strings.Join(layout.columns, ", "))}
			}
			return t.changes(r, columns, origin == "backfill", out)
		default:
			r.skip(r.next())
		}
		if r.bad {
			break
		}
	}
	return nil, malformed
}

func (r *reader) relation() []string {
	columns := []string{}
	for range r.expect(kindMap).count {
		key, _ := r.text()
		if key != "columns" {
			r.skip(r.next())
			continue
		}
		for range r.expect(kindArray).count {
			name, _ := r.text()
			columns = append(columns, name)
		}
	}
	return columns
}

func (t *Transform[R]) changes(r *reader, columns []string, backfill bool, out []byte) ([]byte, *Failure) {
	count := r.expect(kindArray).count
	if r.bad {
		return nil, malformed
	}
	out = appendArray(out, count)
	if t.Prepare != nil {
		return t.prepare(r, count, columns, backfill, out)
	}
	for range count {
		change := Change[R]{Backfill: backfill}
		problem := t.read(r, columns, &change)
		if r.bad {
			return nil, malformed
		}
		out = t.answer(change, problem, out)
	}
	return out, nil
}

// prepare reads all changes before the first is answered.
func (t *Transform[R]) prepare(r *reader, count int, columns []string, backfill bool, out []byte) ([]byte, *Failure) {
	var all, shown []Change[R]
	var problems []error
	for range count {
		change := Change[R]{Backfill: backfill}
		problem := t.read(r, columns, &change)
		if r.bad {
			return nil, malformed
		}
		all, problems = append(all, change), append(problems, problem)
		if problem == nil {
			shown = append(shown, change)
		}
	}
	if failure := t.show(shown); failure != nil {
		return nil, failure
	}
	for at, change := range all {
		out = t.answer(change, problems[at], out)
	}
	return out, nil
}

// show calls Prepare.
func (t *Transform[R]) show(changes []Change[R]) (failure *Failure) {
	defer func() {
		if raised := recover(); raised != nil {
			failure = &Failure{Class: ClassPoison, Code: "exception", Message: fmt.Sprintf("Prepare panicked: %v", raised)}
		}
	}()
	if err := t.Prepare(changes); err != nil {
		return failureOr(err, ClassPoison)
	}
	return nil
}

func (t *Transform[R]) read(r *reader, columns []string, change *Change[R]) error {
	elements := r.expect(kindArray).count
	if elements < 9 {
		r.bad = true
		return nil
	}
	operation, _ := r.text()
	change.Operation = Operation(operation)
	change.ID, _ = r.text()
	layout := t.layout
	row := unsafe.Pointer(&change.Row)
	var problem, oldProblem error
	hasNew := !r.null()
	if hasNew {
		problem = layout.read(r, row, columns)
	}
	if !r.null() {
		change.Old = new(R)
		oldProblem = layout.read(r, unsafe.Pointer(change.Old), columns)
	}
	change.LSN = r.expect(kindInteger).bits
	change.CommitTimeUS = int64(r.expect(kindInteger).bits)
	change.Sequence = r.expect(kindInteger).bits
	if !r.null() && r.expect(kindArray).count == 2 {
		if absent := r.absent(layout, row, columns); absent != nil {
			problem = absent
		}
		if absent := r.absent(layout, unsafe.Pointer(change.Old), columns); absent != nil {
			oldProblem = absent
		}
	}
	for range elements - 8 {
		r.skip(r.next())
	}
	switch {
	case hasNew:
	case change.Old != nil:
		change.Row, problem = *change.Old, oldProblem
	default:
		problem = Poison("no-row", "the change has neither a new nor an old row")
	}
	return problem
}

// absent reads the positions that were not sent.
func (r *reader) absent(layout *layout, row unsafe.Pointer, columns []string) error {
	var problem error
	for range r.expect(kindArray).count {
		at := r.expect(kindInteger).bits
		if at >= uint64(len(columns)) || row == nil {
			r.bad = true
			return nil
		}
		if err := layout.forget(row, columns, int(at)); err != nil && problem == nil {
			problem = err
		}
	}
	return problem
}

// answer writes the outcome of a change.
func (t *Transform[R]) answer(change Change[R], problem error, out []byte) []byte {
	from := len(out)
	var answered any
	if problem == nil {
		answered, problem = t.apply(change)
	}
	if problem == nil {
		out, problem = appendOutcome(out, answered)
	}
	if problem == nil {
		return out
	}
	return appendFailure(append(out[:from], 0x94, 3), failureOr(problem, ClassPoison))
}

// apply calls the transform; a panic concerns its own change.
func (t *Transform[R]) apply(change Change[R]) (answered any, problem error) {
	defer func() {
		if raised := recover(); raised != nil {
			problem = Poison("exception", "the transform panicked: %v", raised)
		}
	}()
	return t.Apply(change)
}

func appendOutcome(out []byte, answered any) ([]byte, error) {
	switch answer := answered.(type) {
	case nil:
		return append(out, 0x91, 1), nil
	case skip:
		return append(out, 0x91, 2), nil
	case Document:
		return appendDocument(append(out, 0x92, 0, 0x91), answer)
	case []Document:
		if len(answer) == 0 {
			return append(out, 0x91, 1), nil
		}
		out = appendArray(append(out, 0x92, 0), len(answer))
		var err error
		for at := 0; at < len(answer) && err == nil; at++ {
			out, err = appendDocument(out, answer[at])
		}
		return out, err
	}
	if pointer := reflect.ValueOf(answered); pointer.Kind() == reflect.Pointer && pointer.IsNil() {
		return append(out, 0x91, 1), nil
	}
	return appendDocument(append(out, 0x92, 0, 0x91), Document{Body: answered})
}

func appendDocument(out []byte, document Document) ([]byte, error) {
	out = append(out, 0x93)
	out = appendOptional(out, document.ID)
	out = appendOptional(out, document.Destination)
	out = append(out, 0xc6, 0, 0, 0, 0)
	from := len(out)
	out, err := appendJSON(out, document.Body)
	if err != nil {
		return out, Poison("document", "the document is no JSON: %v", err)
	}
	binary.BigEndian.PutUint32(out[from-4:], uint32(len(out)-from))
	return out, nil
}
