// Package anabranch is for plugins of Anabranch in Go.
//
// A plugin is a [Transform], made public with [Export], or a [Sink]; `anabranch plugin build` makes a component of the
// program, and [Test] and [TestSink] run it natively. A component asks for the capabilities of the host whose functions
// the program calls ([Query], [StateGet], [Count], [Send] and the like), and for no other.
package anabranch

import (
	"encoding/json"
	"fmt"
	"reflect"
	"sync"
)

const sdkVersion = "0.1.0"

// The linker sets them: the module's name, and a version in place of the plugin's own.
var (
	moduleName      string
	demandedVersion string
)

// Operation is what happened to a row.
type Operation string

const (
	Insert Operation = "insert"
	Update Operation = "update"
	Delete Operation = "delete"
	// Read is a row of a backfill.
	Read Operation = "read"
)

// Change is one change of a row.
type Change[R any] struct {
	Operation Operation
	// Backfill is whether it comes from a backfill, not from the stream.
	Backfill bool
	// ID is the document id; empty where the table has no key.
	ID string
	// Row is the new row; of a delete, the old one.
	Row R
	// Old is the old row as far as the server sent it, else nil. What was not sent, or is NULL, is zero.
	Old *R
	// LSN is the commit's position.
	LSN uint64
	// CommitTimeUS is when it was committed: microseconds since 1970-01-01 UTC.
	CommitTimeUS int64
	// Sequence is the position in the transaction or chunk, from 0.
	Sequence uint64
}

// Document is a document with an id or a destination of its own; empty for the usual ones.
type Document struct {
	ID          string
	Destination string
	Body        any
}

type skip struct{}

// Skip is the answer that leaves the destination as it is.
var Skip any = skip{}

// Transform is a plugin: what it says of itself (wit/v1/describe.md), and what it does.
//
// R is a struct, whose fields are the columns by their tag `column`, in this order; no others are sent. Or it is a
// map[string]any, for all of them.
type Transform[R any] struct {
	// Name is the plugin's; the last part of the module's path if it is empty.
	Name string
	// Version is strict semver. Raise it whenever the documents change.
	Version      string
	Tables       []string
	Destination  string
	WantsDeletes bool
	// NamesIDs is whether documents name their own ids.
	NamesIDs  bool
	DependsOn []string
	// Apply answers one change: with a document (what json.Marshal takes), with nil (this row has no document), with Skip,
	// or with a Document or a []Document. An error is a failure of this change: see Poison, Retry and Fatal.
	Apply func(change Change[R]) (any, error)
	// Prepare, where there is one, is shown the changes of a batch before the first of them is answered: to ask the source or
	// a service once for all of them, and keep the answers in a variable. An error is a failure of the whole batch, and
	// poison where it has no class, as of Apply.
	Prepare func(changes []Change[R]) error

	once   sync.Once
	layout *layout
	wrong  error
}

// Plugin is a Transform of any row.
type Plugin interface {
	describe() (string, error)
	run(batch []byte, out []byte) ([]byte, *Failure)
	columns() ([]string, error)
}

var exported Plugin

// Export makes a plugin that of the component. Call it once, in the main package's `init`.
func Export(plugin Plugin) {
	markTransform()
	exported = plugin
}

func (t *Transform[R]) prepared() (*layout, error) {
	t.once.Do(func() { t.layout, t.wrong = layoutOf(reflect.TypeFor[R]()) })
	return t.layout, t.wrong
}

func (t *Transform[R]) columns() ([]string, error) {
	layout, err := t.prepared()
	if err != nil {
		return nil, err
	}
	return layout.columns, nil
}

type description struct {
	Name         string   `json:"name"`
	Version      string   `json:"version"`
	Kind         string   `json:"kind"`
	Encoding     string   `json:"encoding"`
	Tables       []string `json:"tables,omitempty"`
	Columns      []string `json:"columns"`
	Destination  string   `json:"destination,omitempty"`
	WantsDeletes bool     `json:"wants_deletes,omitempty"`
	NamesIDs     bool     `json:"names_ids,omitempty"`
	DependsOn    []string `json:"depends_on,omitempty"`
	SDK          string   `json:"sdk"`
}

func (t *Transform[R]) describe() (string, error) {
	columns, err := t.columns()
	if err != nil {
		return "", err
	}
	if t.Apply == nil {
		return "", fmt.Errorf("the transform has no Apply")
	}
	return describe(description{Name: t.Name, Version: t.Version, Kind: "transform", Tables: t.Tables, Columns: columns,
		Destination: t.Destination, WantsDeletes: t.WantsDeletes, NamesIDs: t.NamesIDs, DependsOn: t.DependsOn})
}

// describe writes what a plugin says, with what the build says of it.
func describe(said description) (string, error) {
	if said.Name == "" {
		said.Name = moduleName
	}
	if demandedVersion != "" {
		said.Version = demandedVersion
	}
	said.Encoding, said.SDK = "msgpack", "anabranch-sdk-go "+sdkVersion
	text, err := json.Marshal(said)
	return string(text), err
}
