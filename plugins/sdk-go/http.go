package anabranch

import (
	"strings"
	"time"
	"unicode/utf8"
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
// error is a Failure: `http-denied` (fatal: it names the setting), `http-timeout` or `http-failed` (retry), or `http-request`
// (poison: no request can be made of the URL, the method or the headers).
func Send(request Request) (*Response, error) {
	if request.Method == "" {
		request.Method = "GET"
	}
	to, err := targetOf(request.URL)
	if err != nil {
		return nil, err
	}
	if !utf8.ValidString(request.Method) {
		return nil, Poison("http-request", "the method is no word that can be sent")
	}
	for name := range request.Headers {
		if !utf8.ValidString(name) {
			return nil, Poison("http-request", "a header cannot be sent")
		}
	}
	return hostSend(request, to)
}

// target is where a request goes.
type target struct {
	secure    bool
	authority string
	path      string // with the query
}

func targetOf(url string) (target, error) {
	scheme, rest, _ := strings.Cut(url, "://")
	rest, _, _ = strings.Cut(rest, "#")
	authority, path := rest, "/"
	if at := strings.IndexAny(rest, "/?"); at >= 0 {
		authority, path = rest[:at], rest[at:]
		if path[0] == '?' {
			path = "/" + path
		}
	}
	secure := strings.EqualFold(scheme, "https")
	if authority == "" || !utf8.ValidString(url) || !secure && !strings.EqualFold(scheme, "http") {
		return target{}, wrongURL(url)
	}
	return target{secure, authority, path}, nil
}

// wrongURL tells scheme and host: the user, the path and the query may be secrets.
func wrongURL(url string) error {
	where := "a URL without scheme and host"
	scheme, rest, there := strings.Cut(url, "://")
	if there && scheme != "" && strings.Trim(strings.ToLower(scheme), "abcdefghijklmnopqrstuvwxyz0123456789+.-") == "" {
		if at := strings.IndexAny(rest, "/?#"); at >= 0 {
			rest = rest[:at]
		}
		where = scheme + "://" + rest[strings.LastIndexByte(rest, '@')+1:]
	}
	where = strings.ToValidUTF8(where, "\ufffd")
	return Poison("http-request", "no request can go to %s: a URL is `https://host:port/path?query`", where)
}

var unescaped = strings.NewReplacer(`\"`, `"`, `\'`, `'`, `\\`, `\`)

// httpFailure is what the host says of a request: its own words begin with what they are.
func httpFailure(said string) error {
	// So it shows an error of a stream that has words of its own.
	wrapped, begins := strings.CutPrefix(strings.TrimPrefix(said, "ErrorCode::"), `InternalError(Some("`)
	if wrapped, ends := strings.CutSuffix(wrapped, `"))`); begins && ends {
		said = unescaped.Replace(wrapped)
	}
	if words, denied := strings.CutPrefix(said, "denied: "); denied {
		return Fatal("http-denied", "%s", words)
	}
	if words, late := strings.CutPrefix(said, "timeout: "); late {
		return Retry("http-timeout", "%s", words)
	}
	return Retry("http-failed", "%s", said)
}
