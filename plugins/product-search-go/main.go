// Makes search documents of `public.products`, as `product-search` does in Rust.
//
// Products that are not active have none.
package main

import anabranch "anabranch-sdk"

// Product has the columns that are read, in this order; no others are sent.
type Product struct {
	Name        string            `column:"name"`
	Description *string           `column:"description"`
	Price       anabranch.Numeric `column:"price"`
	Active      bool              `column:"active"`
	Tags        []*string         `column:"tags"`
	Attributes  anabranch.JSON    `column:"attributes"`
}

// Document is what a search engine is given.
type Document struct {
	Title      string            `json:"title"`
	Text       string            `json:"text"`
	Price      anabranch.Numeric `json:"price"`
	Tags       []*string         `json:"tags"`
	Attributes anabranch.JSON    `json:"attributes"`
}

var plugin = anabranch.Transform[Product]{
	Version:     "1.0.0",
	Tables:      []string{"public.products"},
	Destination: "products",
	Apply: func(change anabranch.Change[Product]) (any, error) {
		product := change.Row
		if !product.Active {
			return nil, nil
		}
		document := Document{product.Name, "", product.Price, product.Tags, product.Attributes}
		if product.Description != nil {
			document.Text = *product.Description
		}
		if document.Tags == nil {
			document.Tags = []*string{}
		}
		return document, nil
	},
}

func init() { anabranch.Export(&plugin) }

func main() {}
