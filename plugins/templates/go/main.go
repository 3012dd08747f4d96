// Makes documents of a table's rows.
package main

import anabranch "anabranch-sdk"

// Row has the columns that are read, in this order; no others are sent. A pointer takes NULL.
type Row struct {
{{fields}}
}

// Document is what is kept in the destination.
type Document struct {
{{document_fields}}
}

var plugin = anabranch.Transform[Row]{
	Version: "0.1.0",
	Tables: []string{
		{{table_text}},
	},
	Apply: func(change anabranch.Change[Row]) (any, error) {
		row := change.Row
		// `return nil, nil`: this row has no document.
		return Document{
{{bindings}}
		}, nil
	},
}

func init() { anabranch.Export(&plugin) }

func main() {}
