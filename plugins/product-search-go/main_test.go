// Rows in, documents out, whole batches as the host sends them.
package main

import (
	"strings"
	"testing"

	anabranch "anabranch-sdk"
)

func product(price anabranch.Numeric, active bool) Product {
	kitchen, steel := "kitchen", "steel"
	return Product{"Kettle \"Uno\"", nil, price, active, []*string{&kitchen, &steel}, `{"watts": 2200.50}`}
}

func outcomes(t *testing.T, products ...Product) []anabranch.Outcome {
	t.Helper()
	batch := anabranch.Test(&plugin)
	for _, product := range products {
		batch.Insert("1", product)
	}
	outcomes, err := batch.Run()
	if err != nil {
		t.Fatal(err)
	}
	return outcomes
}

func TestAnActiveProductIsFound(t *testing.T) {
	expected := `{"title":"Kettle \"Uno\"","text":"","price":19.90,"tags":["kitchen","steel"],` +
		`"attributes":{"watts": 2200.50}}`
	if text := outcomes(t, product("19.90", true))[0].Text(); text != expected {
		t.Errorf("\nexpected %s\nthere is %s", expected, text)
	}
}

func TestAPriceThatIsNoNumberIsNull(t *testing.T) {
	if text := outcomes(t, product("NaN", true))[0].Text(); !strings.Contains(text, `"price":null`) {
		t.Error(text)
	}
}

func TestAnInactiveProductHasNoDocument(t *testing.T) {
	two := outcomes(t, product("19.90", false), product("1", true))
	if two[0].Kind != "delete" || two[1].Kind != "emit" {
		t.Error(two)
	}
}
