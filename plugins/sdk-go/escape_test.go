package anabranch

import (
	"os"
	"os/exec"
	"regexp"
	"testing"
)

// What the host is given by its address alone has to stand on the heap: what stands on a stack moves with it. The compiler
// says where it puts things.
func TestWhatTheHostReadsStandsOnTheHeap(t *testing.T) {
	build := exec.Command("go", "build", "-gcflags=-m", ".")
	build.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm")
	said, err := build.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	for _, expected := range []string{
		`component\.go:\d+:\d+: leaking param: words`,
		`component\.go:\d+:\d+: leaking param: bytes`,
		`component\.go:\d+:\d+: leaking param: message`,
		`component\.go:\d+:\d+: leaking param: key`,
		`component_host\.go:\d+:\d+: leaking param content: questions`,
		`component_host\.go:\d+:\d+: leaking param content: keys`,
		`component_host\.go:\d+:\d+: leaking param content: labels`,
		`component_host\.go:\d+:\d+: make\(\[\]optional, .*\) escapes to heap`,
		`component_host\.go:\d+:\d+: make\(\[\]list, .*\) escapes to heap`,
		`component_host\.go:\d+:\d+: make\(\[\]statement, .*\) escapes to heap`,
		`component_host\.go:\d+:\d+: make\(\[\]text, .*\) escapes to heap`,
		`component_host\.go:\d+:\d+: make\(\[\]record, .*\) escapes to heap`,
	} {
		if !regexp.MustCompile(`(?m)^\./` + expected + `$`).Match(said) {
			t.Errorf("the compiler does not say %s", expected)
		}
	}
}
