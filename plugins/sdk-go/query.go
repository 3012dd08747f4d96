package anabranch

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"unsafe"
)

// Questions to the source, to enrich documents (`[plugins.<name>.grants] query = true`). All that is asked in one go is
// answered from one snapshot, which sees the changes of the batch. Names of tables need their schema.

// Statement is one SELECT, VALUES or WITH … SELECT, with parameters $1, $2, …
type Statement struct {
	SQL string
	// Sets are the parameters: the statement runs once for each set, and once without any if there is none. A parameter is
	// a string, a bool, a number, a Numeric, a JSON, a fmt.Stringer, or a pointer to one; nil is NULL.
	Sets [][]any
}

// Answers are the rows of each set of parameters, in the order of statements and of the sets in each.
type Answers struct {
	data []byte
	from []int // where each set begins
}

// Query asks statements in one snapshot: better once for many rows than once a row.
func Query(statements ...Statement) (*Answers, error) {
	asked := make([]question, len(statements))
	for at, statement := range statements {
		if err := isText("the SQL of a question", statement.SQL); err != nil {
			return nil, err
		}
		sets := statement.Sets
		if len(sets) == 0 {
			sets = [][]any{nil}
		}
		asked[at] = question{statement.SQL, make([][]*string, len(sets))}
		for set, parameters := range sets {
			texts, err := parametersOf(parameters)
			if err != nil {
				return nil, err
			}
			asked[at].sets[set] = texts
		}
	}
	bytes, failure := hostQuery(asked)
	if failure != nil {
		return nil, failure
	}
	return answersOf(bytes)
}

// Select asks one statement with one set of parameters, and reads its rows as [Rows] does:
//
//	names, err := anabranch.Select[string]("select name from public.brands where id = $1::bigint", brand)
func Select[R any](sql string, parameters ...any) ([]R, error) {
	answers, err := Query(Statement{SQL: sql, Sets: [][]any{parameters}})
	if err != nil {
		return nil, err
	}
	return Rows[R](answers, 0)
}

// Sets is how many there are.
func (a *Answers) Sets() int { return len(a.from) }

// Rows are those of one set of parameters, the first being 0. A row is a struct, whose fields are columns by their tag
// `column`, or a map[string]any, or any other type that a field may have, which is then the first column.
func Rows[R any](answers *Answers, set int) ([]R, error) {
	if set < 0 || set >= len(answers.from) {
		return nil, Fatal("query-answer", "there are %d sets of rows, and none is %d", len(answers.from), set)
	}
	r := &reader{data: answers.data, at: answers.from[set]}
	r.expect(kindArray)
	names := make([]string, r.expect(kindArray).count)
	for at := range names {
		names[at], _ = r.text()
	}
	decode, err := rowDecoder(reflect.TypeFor[R](), names)
	if err != nil {
		return nil, err
	}
	rows := make([]R, r.expect(kindArray).count)
	for at := range rows {
		if r.expect(kindArray).count != len(names) || r.bad {
			return nil, malformedAnswer()
		}
		if err := decode(r, unsafe.Pointer(&rows[at])); err != nil {
			return nil, err
		}
	}
	if r.bad {
		return nil, malformedAnswer()
	}
	return rows, nil
}

// question is a statement as the host takes it.
type question struct {
	sql  string
	sets [][]*string
}

func malformedAnswer() error { return Fatal("query-answer", "the host's answer is malformed") }

func answersOf(bytes []byte) (*Answers, error) {
	r := &reader{data: bytes}
	r.expect(kindArray)
	if r.expect(kindInteger).bits != 1 {
		return nil, malformedAnswer()
	}
	answers := &Answers{data: bytes, from: make([]int, r.expect(kindArray).count)}
	for at := range answers.from {
		answers.from[at] = r.at
		r.skip(r.next())
	}
	if r.bad {
		return nil, malformedAnswer()
	}
	return answers, nil
}

// rowDecoder reads rows of these columns into a type.
func rowDecoder(row reflect.Type, names []string) (decoder, error) {
	if row.Kind() != reflect.Struct || reflect.PointerTo(row).Implements(reflect.TypeFor[field]()) {
		if row == reflect.TypeFor[map[string]any]() {
			return func(r *reader, place unsafe.Pointer) error {
				into := make(map[string]any, len(names))
				for _, name := range names {
					into[name] = plain(r, r.next())
				}
				*(*map[string]any)(place) = into
				return nil
			}, nil
		}
		if len(names) == 0 {
			return nil, Fatal("query-row", "the answer has no columns")
		}
		first, err := decoderOf(row)
		if err != nil {
			return nil, Fatal("query-row", "%v", err)
		}
		return columnsDecoder(names, func(at int) (decoder, uintptr) {
			if at == 0 {
				return first, 0
			}
			return nil, 0
		}), nil
	}
	layout, err := layoutOf(row)
	if err != nil {
		return nil, Fatal("query-row", "%v", err)
	}
	for _, name := range layout.columns {
		if !slices.Contains(names, name) {
			return nil, Fatal("query-row", "the answer has no column %s", name)
		}
	}
	return columnsDecoder(names, func(at int) (decoder, uintptr) {
		if found := slices.Index(layout.columns, names[at]); found >= 0 {
			return layout.decoders[found], layout.offsets[found]
		}
		return nil, 0
	}), nil
}

func columnsDecoder(names []string, of func(at int) (decoder, uintptr)) decoder {
	decoders, offsets := make([]decoder, len(names)), make([]uintptr, len(names))
	for at := range names {
		decoders[at], offsets[at] = of(at)
	}
	return func(r *reader, place unsafe.Pointer) error {
		var problem error
		for at, decode := range decoders {
			if decode == nil {
				r.skip(r.next())
				continue
			}
			if err := decode(r, unsafe.Add(place, offsets[at])); err != nil && problem == nil {
				problem = Poison("query-row", "the column %s %v", names[at], err)
			}
		}
		return problem
	}
}

func parametersOf(parameters []any) ([]*string, error) {
	texts := make([]*string, len(parameters))
	for at, parameter := range parameters {
		text, err := parameterOf(parameter)
		if err != nil {
			return nil, Fatal("query-parameter", "the parameter $%d is %v", at+1, err)
		}
		if text != nil {
			if err := isText(fmt.Sprintf("the parameter $%d of a question", at+1), *text); err != nil {
				return nil, err
			}
		}
		texts[at] = text
	}
	return texts, nil
}

// parameterOf is a parameter as Postgres reads it; nil for NULL.
func parameterOf(parameter any) (*string, error) {
	text := func(text string) (*string, error) { return &text, nil }
	switch typed := parameter.(type) {
	case nil:
		return nil, nil
	case string:
		return text(typed)
	case fmt.Stringer:
		if value := reflect.ValueOf(parameter); value.Kind() == reflect.Pointer && value.IsNil() {
			return nil, nil
		}
		return text(typed.String())
	}
	switch value := reflect.ValueOf(parameter); value.Kind() {
	case reflect.String:
		return text(value.String())
	case reflect.Bool:
		return text(strconv.FormatBool(value.Bool()))
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return text(strconv.FormatInt(value.Int(), 10))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return text(strconv.FormatUint(value.Uint(), 10))
	case reflect.Float32, reflect.Float64:
		return text(strconv.FormatFloat(value.Float(), 'g', -1, 64))
	case reflect.Pointer:
		if value.IsNil() {
			return nil, nil
		}
		return parameterOf(value.Elem().Interface())
	}
	return nil, fmt.Errorf("a %T, which is no text, number or bool", parameter)
}
