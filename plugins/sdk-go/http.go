package anabranch

import (
	"strings"
	"time"
)

// Requests over HTTP, to where the config lets the plugin go (`[plugins.<name>.grants] http`).

// Request is what [Send] sends.
type Request struct {
	// Method is GET if it is empty.
	Method string
	// URL is `https://host:port/path?query`.
	URL string
	// Headers are names and values. The host adds those that the config has for the URL's origin.
	Headers map[string]string
	Body    []byte
	// Timeout is how long to wait for the answer to begin; if it is 0, as long as the config lets a request take.
	Timeout time.Duration
}

// Response is an answer.
type Response struct {
	Status int
	// Headers are by name, in lower case.
	Headers map[string][]string
	Body    []byte
}

// Header is the first value of a header; empty where there is none.
func (r *Response) Header(name string) string {
	if values := r.Headers[strings.ToLower(name)]; len(values) > 0 {
		return values[0]
	}
	return ""
}

// Send sends a request and waits for the whole answer. An answer of any status is one, and redirects are not followed. The
// error is a Failure: `http-denied` (fatal: it names the setting), `http-timeout` or `http-failed` (retry).
func Send(request Request) (*Response, error) {
	if request.Method == "" {
		request.Method = "GET"
	}
	return hostSend(request)
}

// httpFailure is what the host says of a request: its own words begin with what they are.
func httpFailure(said string) error {
	if _, words, denied := strings.Cut(said, "denied: "); denied {
		return Fatal("http-denied", "%s", words)
	}
	if _, words, late := strings.Cut(said, "timeout: "); late {
		return Retry("http-timeout", "%s", words)
	}
	return Retry("http-failed", "%s", said)
}
