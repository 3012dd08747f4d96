package anabranch

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Level is that of a line of the host's log.
type Level int32

const (
	Error Level = iota
	Warn
	Info
	Debug
	Trace
)

var levelNames = [...]string{"error", "warn", "info", "debug", "trace"}

// Log writes a line to the host's log, which limits their rate and length.
func Log(level Level, format string, arguments ...any) {
	hostLog(level, strings.ToValidUTF8(fmt.Sprintf(format, arguments...), "\ufffd"))
}

// Config is the text under a key of `[plugins.<name>] config`, where it has one. Not in `init`: it has no settings yet.
func Config(key string) (string, bool) {
	// No setting has another name.
	if !utf8.ValidString(key) {
		return "", false
	}
	return hostConfig(key)
}
