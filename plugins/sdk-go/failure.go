package anabranch

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Class is what can be done about a failure.
type Class string

const (
	// ClassRetry may work later: the host tries again.
	ClassRetry Class = "retry"
	// ClassPoison is of a change that can never work; others can.
	ClassPoison Class = "poison"
	// ClassFatal is of a plugin that cannot work as it is configured or written.
	ClassFatal Class = "fatal"
)

// Failure is an error with a class. Any other error has the code `exception`: of a transform it is poison of its change; of a
// sink it is retry, since no document is at fault for it, and fatal while it is opened. A panic has that code, too, and is
// poison.
type Failure struct {
	Class Class
	// Code is a short stable word for programs, such as `bad-currency`.
	Code string
	// Message is for people: what is wrong and what to do. Never a secret.
	Message string
	// After is how long a sink's other side wants to be left alone; of results of class retry.
	After time.Duration
}

func (f *Failure) Error() string { return f.Code + ": " + f.Message }

// Retry is a failure that may be none later.
func Retry(code, format string, arguments ...any) error {
	return &Failure{Class: ClassRetry, Code: code, Message: fmt.Sprintf(format, arguments...)}
}

// Poison is a failure of one change.
func Poison(code, format string, arguments ...any) error {
	return &Failure{Class: ClassPoison, Code: code, Message: fmt.Sprintf(format, arguments...)}
}

// Fatal is a failure of everything.
func Fatal(code, format string, arguments ...any) error {
	return &Failure{Class: ClassFatal, Code: code, Message: fmt.Sprintf(format, arguments...)}
}

// RetryAfter is a result of a sink: a failure that may be none after a pause, which the other side asked for.
func RetryAfter(pause time.Duration, code, format string, arguments ...any) error {
	return &Failure{Class: ClassRetry, Code: code, Message: fmt.Sprintf(format, arguments...), After: pause}
}

// failureOr finds the class of an error, also of one that is wrapped.
func failureOr(err error, otherwise Class) *Failure {
	var failure *Failure
	if !errors.As(err, &failure) {
		return &Failure{Class: otherwise, Code: "exception", Message: err.Error()}
	}
	switch failure.Class {
	case ClassRetry, ClassPoison, ClassFatal:
	default:
		return &Failure{Class: ClassFatal, Code: "class", Message: fmt.Sprintf("%q is no class of failure", failure.Class)}
	}
	if error(failure) == err {
		return failure
	}
	return &Failure{Class: failure.Class, Code: failure.Code, Message: err.Error(), After: failure.After}
}

// errorOf is nil where there is no failure: a pointer that is nil would be an error.
func errorOf(failure *Failure) error {
	if failure == nil {
		return nil
	}
	return failure
}

// isText is a failure where a text is none that the host takes: it would end the call.
func isText(which, text string) error {
	if utf8.ValidString(text) {
		return nil
	}
	return Poison("text", "%s is no UTF-8, as bytes or a part of a character are: the host takes none", which)
}

// areTexts is the first failure of several.
func areTexts(which string, texts ...string) error {
	for _, text := range texts {
		if err := isText(which, text); err != nil {
			return err
		}
	}
	return nil
}

// texts are its code and message as the host takes them: a text that is no UTF-8 would end the call.
func (f *Failure) texts() (code, message string) {
	return strings.ToValidUTF8(f.Code, "\ufffd"), strings.ToValidUTF8(f.Message, "\ufffd")
}

func appendFailure(out []byte, failure *Failure) []byte {
	code, message := failure.texts()
	return appendText(appendText(appendText(out, string(failure.Class)), code), message)
}

// replyOf is a failure of a whole batch: its class as a number, and its texts one behind the other.
func replyOf(failure *Failure) (class uint32, reply []byte, code uint32) {
	word, message := failure.texts()
	return map[Class]uint32{ClassRetry: 0, ClassPoison: 1, ClassFatal: 2}[failure.Class], append([]byte(word), message...), uint32(len(word))
}
