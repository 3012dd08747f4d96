package anabranch

import (
	"errors"
	"fmt"
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

// Failure is an error with a class. Any other error, and a panic, is poison of its change, with the code `exception`.
type Failure struct {
	Class Class
	// Code is a short stable word for programs, such as `bad-currency`.
	Code string
	// Message is for people: what is wrong and what to do. Never a secret.
	Message string
}

func (f *Failure) Error() string { return f.Code + ": " + f.Message }

// Retry is a failure that may be none later.
func Retry(code, format string, arguments ...any) error {
	return &Failure{ClassRetry, code, fmt.Sprintf(format, arguments...)}
}

// Poison is a failure of one change.
func Poison(code, format string, arguments ...any) error {
	return &Failure{ClassPoison, code, fmt.Sprintf(format, arguments...)}
}

// Fatal is a failure of everything.
func Fatal(code, format string, arguments ...any) error {
	return &Failure{ClassFatal, code, fmt.Sprintf(format, arguments...)}
}

// failureOf finds the class of an error, also of one that is wrapped.
func failureOf(err error) *Failure {
	var failure *Failure
	if !errors.As(err, &failure) {
		return &Failure{ClassPoison, "exception", err.Error()}
	}
	switch failure.Class {
	case ClassRetry, ClassPoison, ClassFatal:
	default:
		return &Failure{ClassFatal, "class", fmt.Sprintf("%q is no class of failure", failure.Class)}
	}
	if error(failure) == err {
		return failure
	}
	return &Failure{failure.Class, failure.Code, err.Error()}
}
