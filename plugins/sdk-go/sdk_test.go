package anabranch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
)

// Every kind of field; what a pointer takes is NULL.
type everything struct {
	What    string             `column:"what"`
	Flag    *bool              `column:"flag"`
	Number  int64              `column:"number"`
	Small   int16              `column:"small"`
	Float   float64            `column:"float"`
	Bytes   []byte             `column:"bytes"`
	JSON    JSON               `column:"json"`
	Price   Numeric            `column:"price"`
	Tags    []*string          `column:"tags"`
	Matrix  [][]int64          `column:"matrix"`
	Map     map[string]*string `column:"map"`
	Maybe   Field[string]      `column:"maybe"`
	Any     any                `column:"any"`
	Ignored string             `column:"-"`
}

func pointer[T any](value T) *T { return &value }

func run[R any](t *testing.T, batch *Batch[R]) []Outcome {
	t.Helper()
	outcomes, err := batch.Run()
	if err != nil {
		t.Fatal(err)
	}
	return outcomes
}

func expect[T comparable](t *testing.T, there, expected T) {
	t.Helper()
	if there != expected {
		t.Errorf("\nexpected %v\nthere is %v", expected, there)
	}
}

func echo() *Transform[everything] {
	return &Transform[everything]{Apply: func(change Change[everything]) (any, error) { return change.Row, nil }}
}

func TestEveryValueComesBack(t *testing.T) {
	row := everything{
		What: "a \"b\" <&> \u2028 é 😀\x01", Flag: pointer(true), Number: math.MinInt64, Small: -7, Float: 0.1,
		Bytes: []byte{0, 255}, JSON: ` {"x": 1e400}`, Price: "12345678901234567890.50", Tags: []*string{pointer("a"), nil},
		Matrix: [][]int64{{1, 2}, {}}, Map: map[string]*string{"k": nil},
		Maybe: Field[string]{Present, "m"}, Any: []any{int64(1), nil, true},
	}
	outcomes := run(t, Test(echo()).Insert("1", row))
	expect(t, outcomes[0].Text(), "{\"What\":\"a \\\"b\\\" <&> \u2028"+` é 😀\u0001","Flag":true,"Number":-9223372036854775808,`+
		`"Small":-7,"Float":0.1,"Bytes":"AP8=","JSON": {"x": 1e400},"Price":12345678901234567890.50,"Tags":["a",null],`+
		`"Matrix":[[1,2],[]],"Map":{"k":null},"Maybe":"m","Any":[1,null,true],"Ignored":""}`)
}

func TestNullAndWhatWasNotSentAreTwoThings(t *testing.T) {
	states := &Transform[everything]{Apply: func(change Change[everything]) (any, error) {
		return fmt.Sprint(change.Row.Maybe.State, change.Row.Flag == nil, change.Row.Tags == nil), nil
	}}
	outcomes := run(t, Test(states).Insert("1", everything{Maybe: Field[string]{State: Null}}).Insert("1", everything{}))
	expect(t, outcomes[0].Text(), `"1 true true"`)
	expect(t, outcomes[1].Text(), `"0 true true"`)
}

func TestAValueOfAnotherTypeIsPoison(t *testing.T) {
	type narrow struct {
		Number int16  `column:"a"`
		Text   string `column:"b"`
	}
	plugin := &Transform[narrow]{Apply: func(change Change[narrow]) (any, error) { return change.Row.Number, nil }}
	outcomes, failure := plugin.run(request(`a`, `b`, []any{int64(70000), "x"}, []any{int64(7), nil}, []any{int64(7), "x"}), nil)
	if failure != nil {
		t.Fatal(failure)
	}
	read, err := outcomesOf(outcomes)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, read[0].Failure.Message, "the column a is an integer where an integer of 16 bits is read")
	expect(t, *read[1].Failure, Failure{Class: ClassPoison, Code: "column", Message: "the column b is NULL where text is read"})
	expect(t, read[2].Text(), "7")
	_, failure = plugin.run(request(`b`, `a`, []any{"x", int64(7)}), nil)
	expect(t, failure.Code, "columns")
	type unsigned struct {
		Number uint64 `column:"a"`
		Text   string `column:"b"`
	}
	counting := &Transform[unsigned]{Apply: func(change Change[unsigned]) (any, error) { return change.Row.Number, nil }}
	outcomes, _ = counting.run(request(`a`, `b`, []any{int64(-1), "x"}), nil)
	read, _ = outcomesOf(outcomes)
	expect(t, read[0].Failure.Message, "the column a is an integer where an unsigned integer is read")
}

func outcomesOf(reply []byte) ([]Outcome, error) { return outcomes(reply) }

// request is one of two columns whose rows are any values.
func request(first, second string, rows ...[]any) []byte {
	batch := Test(&Transform[map[string]any]{})
	for _, row := range rows {
		batch.Insert("1", map[string]any{first: row[0], second: row[1]})
	}
	return batch.request([]string{first, second})
}

func TestOutcomes(t *testing.T) {
	lost := fmt.Errorf("while asking: %w", Retry("later", "try %d times", 3))
	answers := map[string]struct {
		answer any
		err    error
	}{
		"none": {nil, nil}, "nil": {(*Document)(nil), nil}, "skip": {Skip, nil}, "retry": {nil, lost},
		"plain": {nil, errors.New("oh")}, "channel": {make(chan int), nil}, "no class": {nil, &Failure{Class: "bad"}},
		"many": {[]Document{{ID: "a", Body: 1}, {Destination: "d", Body: "x"}}, nil}, "no documents": {[]Document{}, nil},
	}
	plugin := &Transform[map[string]any]{Apply: func(change Change[map[string]any]) (any, error) {
		what := change.Row["what"].(string)
		if what == "panic" {
			return *(*int)(nil), nil
		}
		return answers[what].answer, answers[what].err
	}}
	kinds := []struct{ what, kind, failure string }{
		{"none", "delete", ""}, {"nil", "delete", ""}, {"skip", "skip", ""},
		{"retry", "failed", "later: while asking: later: try 3 times"}, {"plain", "failed", "exception: oh"},
		{"panic", "failed", "exception: the transform panicked: runtime error: invalid memory address or nil pointer dereference"},
		{"channel", "failed", "document: the document is no JSON: json: unsupported type: chan int"},
		{"no class", "failed", `class: "bad" is no class of failure`},
		{"many", "emit", ""}, {"no documents", "delete", ""},
	}
	batch := Test(plugin)
	for _, kind := range kinds {
		batch.Insert("1", map[string]any{"what": kind.what})
	}
	outcomes := run(t, batch)
	for at, kind := range kinds {
		expect(t, outcomes[at].Kind, kind.kind)
		if outcomes[at].Failure != nil {
			expect(t, outcomes[at].Failure.Error(), kind.failure)
		}
	}
	expect(t, outcomes[3].Failure.Class, ClassRetry)
	expect(t, fmt.Sprint(outcomes[8].Documents), `[{a  1} { d "x"}]`)
}

func TestDeletesAndOldRows(t *testing.T) {
	type named struct {
		Name string `column:"name"`
	}
	plugin := &Transform[named]{Apply: func(change Change[named]) (any, error) {
		old := "none"
		if change.Old != nil {
			old = change.Old.Name
		}
		return fmt.Sprintf("%s %s %s %s %d", change.Operation, change.ID, change.Row.Name, old, change.Sequence), nil
	}}
	outcomes := run(t, Test(plugin).Update("1", named{"new"}, &named{"old"}).Delete("2", named{"gone"}).Read("3", named{"read"}))
	expect(t, outcomes[0].Text(), `"update 1 new old 0"`)
	expect(t, outcomes[1].Text(), `"delete 2 gone gone 1"`)
	expect(t, outcomes[2].Text(), `"read 3 read none 2"`)
}

func TestTheHostIsThere(t *testing.T) {
	plugin := &Transform[map[string]any]{Apply: func(Change[map[string]any]) (any, error) {
		Log(Warn, "line %d", 7)
		value, _ := Config("setting")
		return value, nil
	}}
	batch := Test(plugin).Set("setting", "of the test").Insert("1", map[string]any{})
	expect(t, run(t, batch)[0].Text(), `"of the test"`)
	expect(t, strings.Join(batch.Lines(), ","), "warn: line 7")
}

func TestNumbersKeepTheirDigits(t *testing.T) {
	for _, number := range []Numeric{"0", "-0.5000", "1234567890123456789012345678901234567890.50"} {
		expect(t, number.IsNumber(), true)
	}
	for _, other := range []Numeric{"NaN", "-Infinity", "", "-", "01", "1.", ".5", "1e5", "0x1", "1 "} {
		expect(t, other.IsNumber(), false)
	}
}

func TestDamagedRequestsAreTold(t *testing.T) {
	plugin := echo()
	whole := Test(plugin).Insert("1", everything{What: "a", Tags: []*string{nil}}).Update("2", everything{}, &everything{})
	columns, _ := plugin.columns()
	request := whole.request(columns)
	if _, failure := plugin.run(request, nil); failure != nil {
		t.Fatal(failure)
	}
	for size := range request {
		if _, failure := plugin.run(request[:size], nil); failure == nil {
			t.Errorf("the first %d bytes are answered", size)
		}
	}
	// Every byte in turn is another: nothing may panic.
	for at := range request {
		for byte := range 256 {
			changed := append([]uint8(nil), request...)
			changed[at] = uint8(byte)
			plugin.run(changed, nil)
		}
	}
}

func TestRowsThatCannotBeAreNamed(t *testing.T) {
	type untagged struct{ Name string }
	type odd struct {
		Channel chan int `column:"c"`
	}
	_, err := (&Transform[untagged]{}).columns()
	expect(t, strings.Contains(fmt.Sprint(err), "the field Name of anabranch.untagged has no column"), true)
	_, err = (&Transform[odd]{}).columns()
	expect(t, strings.Contains(fmt.Sprint(err), "no column becomes a chan int"), true)
	_, err = (&Transform[int]{}).columns()
	expect(t, strings.Contains(fmt.Sprint(err), "a row is a struct"), true)
}

// What is written here is what encoding/json writes, apart from what the SDK promises.
func TestDocumentsAreThoseOfTheStandardLibrary(t *testing.T) {
	type inner struct {
		A int    `json:"a,omitempty"`
		B string `json:"-"`
		C []int  `json:",omitempty"`
		D *inner `json:"d,omitempty"`
	}
	type embedding struct {
		inner
		E int `json:",string"`
	}
	now := time.Unix(0, 0).UTC()
	for _, body := range []any{
		nil, true, 1, int8(-3), uint64(math.MaxUint64), 1e21, 1e-7, float32(0.1), 123456.75, "a\"\\\n\u2028<&>é\x7f", []byte("ab"), []byte(nil),
		[]any{1, "x", nil, map[string]any{"b": 1, "a": []string{}}}, []int(nil), [2]bool{true, false}, map[int]string{2: "x", 1: "y"},
		inner{A: 1, B: "no", C: []int{1}, D: &inner{}}, embedding{inner{A: 1}, 7}, &now, now, struct{ a, B int }{1, 2},
		"cut \xff off", json.RawMessage(`{"a":1}`), map[string]*inner{"k": nil},
	} {
		var expected bytes.Buffer
		standard := json.NewEncoder(&expected)
		standard.SetEscapeHTML(false)
		if err := standard.Encode(body); err != nil {
			t.Fatal(err)
		}
		text, err := appendJSON(nil, body)
		if err != nil {
			t.Error(err)
		}
		// The standard library escapes what JavaScript could not read once, and writes some controls in other letters.
		expect(t, string(text), strings.ReplaceAll(strings.TrimSpace(expected.String()), `\u2028`, "\u2028"))
	}
	text, _ := appendJSON(nil, []float64{math.NaN(), math.Inf(1)})
	expect(t, string(text), "[null,null]")
	type ring struct{ Next *ring }
	endless := &ring{}
	endless.Next = endless
	_, err := appendJSON(nil, endless)
	expect(t, err, errDeep)
	type knot *knot
	var tied knot
	tied = &tied
	_, err = appendJSON(nil, tied)
	expect(t, err, errDeep)
}

// The writer looks at eight bytes at once.
func TestWhatIsEscapedIsFoundAnywhere(t *testing.T) {
	for _, filler := range []string{"x", "!", "]", "é"} {
		for place := range 20 {
			for character := range rune(0x80) {
				text := strings.Repeat(filler, place) + string(character) + strings.Repeat(filler, 20-place)
				written, err := appendJSON(nil, text)
				var read string
				if err != nil || json.Unmarshal(written, &read) != nil || read != text {
					t.Fatalf("%q becomes %s", text, written)
				}
			}
		}
	}
}

func TestDescribe(t *testing.T) {
	plugin := echo()
	plugin.Name, plugin.Version, plugin.Tables = "p", "1.0.0", []string{"public.t"}
	said, err := Describe(plugin)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, strings.HasPrefix(said, `{"name":"p","version":"1.0.0","kind":"transform","encoding":"msgpack",`+
		`"tables":["public.t"],"columns":["what","flag","number",`), true)
}

func TestAKeyMayHaveAComma(t *testing.T) {
	document, err := appendJSON(nil, struct {
		Plain int `json:"plain"`
		Comma int `key:"weight, net"`
		Dash  int `key:"-"`
		Quote int `key:"a\"b" json:"other,omitempty"`
		Left  int `json:"-"`
	}{1, 2, 3, 0, 5})
	expect(t, string(document), `{"plain":1,"weight, net":2,"-":3,"a\"b":0}`)
	expect(t, err, nil)
}
