package anabranch

import "encoding/json"

// JSON is the text of a json or jsonb column. In a document it stands as it is: every digit, and the order of keys, is
// kept. Parse it where its value is needed.
type JSON string

// MarshalJSON gives the text; null where there is none.
func (j JSON) MarshalJSON() ([]byte, error) {
	if j == "" {
		return []byte("null"), nil
	}
	return []byte(j), nil
}

// Parse reads the value into what a pointer points to, as json.Unmarshal does.
func (j JSON) Parse(into any) error { return json.Unmarshal([]byte(j), into) }

// Numeric is the text of a numeric column, scale kept. In a document it is a number with all its digits; null for `NaN`
// and the infinities.
type Numeric string

// MarshalJSON gives the number.
func (n Numeric) MarshalJSON() ([]byte, error) {
	if !n.IsNumber() {
		return []byte("null"), nil
	}
	return []byte(n), nil
}

// IsNumber tells whether it is a number that JSON can say.
func (n Numeric) IsNumber() bool {
	text := string(n)
	if len(text) > 0 && text[0] == '-' {
		text = text[1:]
	}
	whole := digits(text)
	if whole == 0 || (whole > 1 && text[0] == '0') {
		return false
	}
	if text = text[whole:]; text == "" {
		return true
	}
	return text[0] == '.' && len(text) > 1 && digits(text[1:]) == len(text)-1
}

func digits(text string) int {
	for at := range len(text) {
		if text[at] < '0' || text[at] > '9' {
			return at
		}
	}
	return len(text)
}

// State tells a value, NULL and a column that was not sent apart.
type State uint8

const (
	// Absent is a column that was not sent.
	Absent State = iota
	// Null is NULL.
	Null
	// Present is a value.
	Present
)

// Field is a column whose NULL and absence are two things; a pointer is nil for both.
type Field[T any] struct {
	State State
	Value T
}

// MarshalJSON gives the value; null where there is none.
func (f Field[T]) MarshalJSON() ([]byte, error) {
	if f.State != Present {
		return []byte("null"), nil
	}
	return json.Marshal(f.Value)
}

// field is what decoders know of every Field.
type field interface {
	parts() (state *State, value any)
}

func (f *Field[T]) parts() (*State, any) { return &f.State, &f.Value }
