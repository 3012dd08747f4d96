package main

import (
	"testing"

	anabranch "anabranch-sdk"
)

func TestARowBecomesADocument(t *testing.T) {
{{helpers}}	row := Row{
{{test_row}}
	}
	outcomes, err := anabranch.Test(&plugin).Insert("1", row).Run()
	if err != nil {
		t.Fatal(err)
	}
	expected := {{document_text}}
	if outcomes[0].Text() != expected {
		t.Errorf("\nexpected %s\nthere is %s", expected, outcomes[0].Text())
	}
}
