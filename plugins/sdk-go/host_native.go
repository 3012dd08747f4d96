//go:build !wasip1

package anabranch

import (
	"fmt"
	"slices"
	"strings"
)

// Host is what a plugin meets in tests; see [Test] and [TestSink]. What it does not answer is refused.
type Host struct {
	// Config are the mapping's settings.
	Config map[string]string
	// Query answers a statement for one set of parameters: the names of the columns, and the rows.
	Query func(sql string, parameters []*string) (columns []string, rows [][]any)
	// HTTP answers requests.
	HTTP func(request Request) (*Response, error)
	// State is the store.
	State map[string][]byte
	// Metrics are what numbers came to: of `name`, or `name{label="value"}`.
	Metrics map[string]float64
	// Lines are those that were logged: `warn: …`.
	Lines []string
}

func newHost() *Host {
	return &Host{Config: map[string]string{}, State: map[string][]byte{}, Metrics: map[string]float64{}}
}

// native is the host of what runs now.
var native = newHost()

// bind makes a host the one of what runs, until the function that it gives is called.
func bind(host *Host) func() {
	before := native
	native = host
	return func() { native = before }
}

func hostLog(level Level, message string) {
	native.Lines = append(native.Lines, levelNames[level]+": "+message)
}

func hostConfig(key string) (string, bool) {
	value, ok := native.Config[key]
	return value, ok
}

func markTransform() {}

func markSink() {}

func markPurge() {}

func markGenerations() {}

func hostQuery(questions []question) ([]byte, *Failure) {
	if native.Query == nil {
		return nil, &Failure{Class: ClassFatal, Code: "query-denied",
			Message: "no question is answered here: say how with the Query of the test's Host"}
	}
	sets := 0
	var body []byte
	for _, asked := range questions {
		for _, parameters := range asked.sets {
			sets++
			columns, rows := native.Query(asked.sql, parameters)
			body = appendArray(appendArray(body, 2), len(columns))
			for _, name := range columns {
				body = appendText(body, name)
			}
			body = appendArray(body, len(rows))
			for _, row := range rows {
				body = appendArray(body, len(row))
				for _, value := range row {
					body = appendValue(body, valueOf(value))
				}
			}
		}
	}
	return append(appendArray(appendInteger(appendArray(nil, 2), 1), sets), body...), nil
}

func hostStateGet(keys []string) ([][]byte, *Failure) {
	values := make([][]byte, len(keys))
	for at, key := range keys {
		if value, ok := native.State[key]; ok {
			values[at] = append([]byte{}, value...)
		}
	}
	return values, nil
}

func hostStateSet(key string, value []byte) *Failure {
	native.State[key] = slices.Clone(value)
	return nil
}

func hostStateDelete(key string) *Failure {
	delete(native.State, key)
	return nil
}

func hostStateKeys(prefix, after string, limit uint32) ([]string, *Failure) {
	keys := []string{}
	for key := range native.State {
		if strings.HasPrefix(key, prefix) && (after == "" || key > after) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys[:min(len(keys), int(limit))], nil
}

func series(name string, labels []Label) string {
	if len(labels) == 0 {
		return name
	}
	parts := make([]string, len(labels))
	for at, label := range labels {
		parts[at] = fmt.Sprintf("%s=%q", label.Name, label.Value)
	}
	return name + "{" + strings.Join(parts, ",") + "}"
}

func hostCount(name string, by uint64, labels []Label) *Failure {
	native.Metrics[series(name, labels)] += float64(by)
	return nil
}

func hostGauge(name string, value float64, labels []Label) *Failure {
	native.Metrics[series(name, labels)] = value
	return nil
}

func hostSend(request Request, _ target) (*Response, error) {
	if native.HTTP == nil {
		return nil, httpFailure("denied: no request is answered here: say how with the HTTP of the test's Host")
	}
	return native.HTTP(request)
}
