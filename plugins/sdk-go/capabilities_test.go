package anabranch

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

type asked struct {
	What string `column:"what"`
	Arg  string `column:"arg"`
}

type brand struct {
	Name *string `column:"name"`
	ID   int64   `column:"id"`
}

func ask(change Change[asked]) (any, error) {
	arg := change.Row.Arg
	switch change.Row.What {
	case "select":
		brands, err := Select[brand]("select id, name, country from public.brands where id = $1::int", arg)
		if err != nil {
			return nil, err
		}
		texts := []string{}
		for _, brand := range brands {
			if brand.Name == nil {
				brand.Name = new(string)
			}
			texts = append(texts, fmt.Sprint(brand.ID, *brand.Name))
		}
		return texts, nil
	case "send":
		response, err := Send(Request{Method: "POST", URL: arg, Body: []byte("{}")})
		if err != nil {
			return nil, fmt.Errorf("of the rates: %w", err)
		}
		return []any{response.Status, string(response.Body), response.Header("ETag"), response.Header("none")}, nil
	case "keep":
		if err := StateSet("b", []byte(arg)); err != nil {
			return nil, err
		}
		StateSet("a", []byte{})
		StateSet("ab", []byte("x"))
		StateDelete("never")
		values, _ := StateGetMany("b", "none", "a")
		keys, err := StateKeys("a", "a", 10)
		_, there, _ := StateGet("none")
		return []any{string(values[0]), values[1] == nil, values[2] != nil, keys, there}, err
	}
	Count("rows", 2, Label{"kind", arg})
	Count("rows", 3, Label{"kind", arg})
	Gauge("depth", 1.5)
	return "counted", nil
}

var asker = Transform[asked]{Name: "asker", Version: "1.0.0", Apply: ask}

func brands(sql string, parameters []*string) ([]string, [][]any) {
	columns := []string{"id", "name", "country"}
	switch {
	case parameters[0] == nil:
		return columns, [][]any{{nil, "of NULL", nil}}
	case *parameters[0] == "7":
		return columns, [][]any{{int64(7), "Köln", "DE"}, {int64(8), nil, nil}}
	}
	return columns, nil
}

func TestAnswersAreReadAsRows(t *testing.T) {
	batch := Test(&asker).Insert("1", asked{"select", "7"}).Insert("2", asked{"select", "9"})
	batch.Host.Query = brands
	outcomes := run(t, batch)
	expect(t, outcomes[0].Text(), `["7Köln","8"]`)
	expect(t, outcomes[1].Text(), `[]`)
}

func TestAnswersComeSetBySet(t *testing.T) {
	host := newHost()
	host.Query = brands
	defer bind(host)()
	seven := 7
	answers, err := Query(Statement{SQL: "a", Sets: [][]any{{&seven}, {(*int)(nil)}}}, Statement{"b", [][]any{{Numeric("1.50")}}})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, answers.Sets(), 3)
	first, err := Rows[int64](answers, 0)
	expect(t, fmt.Sprint(first, err), "[7 8] <nil>")
	all, err := Rows[map[string]any](answers, 0)
	expect(t, fmt.Sprint(all, err), "[map[country:DE id:7 name:Köln] map[country:<nil> id:8 name:<nil>]] <nil>")
	for _, err := range []error{
		second(Rows[int64](answers, 1)),
		second(Rows[struct {
			A int64 `column:"missing"`
		}](answers, 0)),
		second(Rows[int64](answers, 3)),
		second(Rows[chan int](answers, 0)),
	} {
		var failure *Failure
		if !errors.As(err, &failure) {
			t.Errorf("%v is no failure", err)
		}
	}
	_, err = Select[int64]("a", []int{1})
	expect(t, err.Error(), "query-parameter: the parameter $1 is a []int, which is no text, number or bool")
}

func second[T any](_ T, err error) error { return err }

func TestParametersAreTexts(t *testing.T) {
	text := "x"
	for _, sample := range []struct {
		parameter any
		expected  string
	}{
		{"a", "a"}, {true, "true"}, {int8(-7), "-7"}, {uint64(1 << 63), "9223372036854775808"}, {1.5, "1.5"},
		{Numeric("1.50"), "1.50"}, {JSON("{}"), "{}"}, {&text, "x"}, {time.Second, "1s"},
	} {
		got, err := parameterOf(sample.parameter)
		if err != nil || *got != sample.expected {
			t.Errorf("%v: %v, %v", sample.parameter, got, err)
		}
	}
	for _, null := range []any{nil, (*string)(nil), (*time.Time)(nil)} {
		if got, err := parameterOf(null); got != nil || err != nil {
			t.Errorf("%v: %v, %v", null, got, err)
		}
	}
}

func TestDamagedAnswersAreTold(t *testing.T) {
	host := newHost()
	host.Query = brands
	defer bind(host)()
	whole, _ := hostQuery([]question{{"a", [][]*string{{new(string)}, {nil}}}})
	for size := range len(whole) {
		for changed := range 256 {
			cut := append(append([]byte{}, whole[:size]...), byte(changed))
			if answers, err := answersOf(cut); err == nil {
				for set := range answers.Sets() {
					Rows[brand](answers, set)
				}
			}
		}
	}
}

func TestTheStoreAndNumbersAreTheTests(t *testing.T) {
	batch := Test(&asker).Insert("1", asked{"keep", "new"}).Insert("2", asked{"count", "a"})
	outcomes := run(t, batch)
	expect(t, outcomes[0].Text(), `["new",true,true,["ab"],false]`)
	expect(t, string(batch.Host.State["b"]), "new")
	expect(t, batch.Host.Metrics[`rows{kind="a"}`], 5)
	expect(t, batch.Host.Metrics["depth"], 1.5)
}

func TestRequestsAreAnsweredByTheTest(t *testing.T) {
	batch := Test(&asker).Insert("1", asked{"send", "http://x/"}).Insert("2", asked{"send", "http://late/"})
	batch.Host.HTTP = func(request Request) (*Response, error) {
		if request.URL == "http://late/" {
			return nil, httpFailure("timeout: it is late")
		}
		return &Response{200, map[string][]string{"etag": {"7"}}, request.Body}, nil
	}
	outcomes := run(t, batch)
	expect(t, outcomes[0].Text(), `[200,"{}","7",""]`)
	expect(t, *outcomes[1].Failure, Failure{Class: ClassRetry, Code: "http-timeout", Message: "of the rates: http-timeout: it is late"})
}

func TestWhatATestDoesNotAnswerIsRefused(t *testing.T) {
	outcomes := run(t, Test(&asker).Insert("1", asked{"select", "7"}).Insert("2", asked{"send", "http://x/"}))
	expect(t, outcomes[0].Failure.Code, "query-denied")
	expect(t, outcomes[1].Failure.Code, "http-denied")
	expect(t, outcomes[1].Failure.Class, ClassFatal)
}

func TestARequestThatCannotBeMadeIsPoison(t *testing.T) {
	for url, shown := range map[string]string{
		"no url":                                "to a URL without scheme and host:",
		"":                                      "to a URL without",
		"a b://marker":                          "to a URL without",
		"ftp://me:marker@host:21/marker?marker": "to ftp://host:21:",
		"https:///marker":                       "to https://:",
		"http://?marker":                        "to http://:",
	} {
		_, err := Send(Request{URL: url})
		failure := failureIn(t, err)
		expect(t, failure.Class, ClassPoison)
		expect(t, failure.Code, "http-request")
		if !strings.Contains(failure.Message, shown) || strings.Contains(failure.Message, "marker") {
			t.Error(url, failure.Message)
		}
	}
	for url, expected := range map[string]target{
		"HTTP://x:1?a=b#c": {false, "x:1", "/?a=b"}, "https://x": {true, "x", "/"}, "https://x/a?b/c": {true, "x", "/a?b/c"},
	} {
		to, err := targetOf(url)
		expect(t, err, nil)
		expect(t, to, expected)
	}
}

func TestTheHostsWordsBeginWithWhatTheyAre(t *testing.T) {
	for said, expected := range map[string]Failure{
		"denied: x: `y`":              {Class: ClassFatal, Code: "http-denied", Message: "x: `y`"},
		"timeout: late":               {Class: ClassRetry, Code: "http-timeout", Message: "late"},
		"no connection: denied: by x": {Class: ClassRetry, Code: "http-failed", Message: "no connection: denied: by x"},
		`ErrorCode::InternalError(Some("denied: set \"a\""))`: {Class: ClassFatal, Code: "http-denied", Message: `set "a"`},
		`InternalError(Some("timeout: late"))`:                {Class: ClassRetry, Code: "http-timeout", Message: "late"},
		"ErrorCode::Reset":                                    {Class: ClassRetry, Code: "http-failed", Message: "ErrorCode::Reset"},
	} {
		expect(t, failureIn(t, httpFailure(said)), expected)
	}
}

// What a host gave such a text would end the call.
func TestWhatIsNoUTF8DoesNotLeave(t *testing.T) {
	host := newHost()
	host.Query = brands
	host.HTTP = func(Request) (*Response, error) { return &Response{Status: 200}, nil }
	defer bind(host)()
	const bad = "K\xc3"
	_, _, got := StateGet(bad)
	_, keys := StateKeys("", bad, 1)
	for words, err := range map[string]error{
		"text: the SQL of a question is no UTF-8":            second(Select[int64]("select '" + bad + "'")),
		"text: the parameter $2 of a question is":            second(Select[int64]("select $1", 1, bad)),
		"text: a key of the store is":                        got,
		"text: a key of the store is no":                     StateSet(bad, nil),
		"text: a key of the store is no UTF-8":               StateDelete(bad),
		"text: a key of the store is no UTF-8, as":           keys,
		"text: the name of a number is":                      Count(bad, 1),
		"text: the name of a label is":                       Gauge("depth", 1, Label{bad, ""}),
		"text: the value of a label is":                      Count("rows", 1, Label{"kind", bad}),
		"http-request: no request can go to http://K\ufffd:": second(Send(Request{URL: "http://" + bad})),
		"http-request: no request can go to http://x:":       second(Send(Request{URL: "http://x/" + bad})),
		"http-request: the method is":                        second(Send(Request{URL: "http://x/", Method: bad})),
		"http-request: a header cannot":                      second(Send(Request{URL: "http://x/", Headers: map[string]string{bad: ""}})),
	} {
		var failure *Failure
		if !errors.As(err, &failure) || failure.Class != ClassPoison || !strings.HasPrefix(err.Error(), words) {
			t.Errorf("%v is not: %s", err, words)
		}
	}
	// Values of the store are bytes.
	expect(t, StateSet("bytes", []byte(bad)), nil)
	_, there := Config(bad)
	expect(t, there, false)
}

func TestABatchIsPreparedOnceBeforeItsFirstChange(t *testing.T) {
	var known map[string]string
	prepared := 0
	plugin := Transform[asked]{Name: "preparer", Version: "1.0.0",
		Prepare: func(changes []Change[asked]) error {
			prepared++
			known = map[string]string{}
			statement := Statement{SQL: "a"}
			for _, change := range changes {
				switch change.Row.Arg {
				case "panic":
					panic("at the batch")
				case "plain":
					return errors.New("no class")
				case "late":
					return fmt.Errorf("of all: %w", Retry("late", "later"))
				}
				statement.Sets = append(statement.Sets, []any{change.Row.Arg})
			}
			answers, err := Query(statement)
			for set, change := range changes {
				rows, _ := Rows[string](answers, set)
				known[change.Row.Arg] = rows[0]
			}
			return err
		},
		Apply: func(change Change[asked]) (any, error) { return known[change.Row.Arg], nil },
	}
	of := func(args ...string) *Batch[asked] {
		batch := Test(&plugin)
		batch.Host.Query = func(sql string, parameters []*string) ([]string, [][]any) {
			return []string{"name"}, [][]any{{"of " + *parameters[0]}}
		}
		for at, arg := range args {
			batch.Insert(fmt.Sprint(at), asked{Arg: arg})
		}
		return batch
	}
	outcomes := run(t, of("a", "b"))
	expect(t, outcomes[0].Text(), `"of a"`)
	expect(t, outcomes[1].Text(), `"of b"`)
	expect(t, prepared, 1)
	for arg, expected := range map[string]Failure{
		"panic": {Class: ClassPoison, Code: "exception", Message: "Prepare panicked: at the batch"},
		"plain": {Class: ClassPoison, Code: "exception", Message: "no class"},
		"late":  {Class: ClassRetry, Code: "late", Message: "of all: late: later"},
	} {
		_, err := of("a", arg).Run()
		expect(t, failureIn(t, err), expected)
	}
}
