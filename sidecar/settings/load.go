package settings

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/kelseyhightower/envconfig"
)

// ErrMalformed is what every error of Load is: a value that is not legal.
var ErrMalformed = errors.New("malformed setting")

// ValueError names one malformed setting, what it holds and what is legal.
type ValueError struct {
	Name   string // WALSIDECAR_WAL_SIZE or --wal-size, as it was given
	Value  string
	Reason string // what is wrong with it, "" when Legal says it all
	Legal  string
}

func (e *ValueError) Error() string {
	reason := ""
	if e.Reason != "" {
		reason = ": " + e.Reason
	}
	return fmt.Sprintf("%s=%q%s; legal is %s", e.Name, e.Value, reason, e.Legal)
}

// Unwrap makes a ValueError an ErrMalformed.
func (e *ValueError) Unwrap() error { return ErrMalformed }

// Load reads all settings: defaults, over them the environment of this process, over it
// the flags (by flag name, for example "wal-size"; only those that were given). Its error
// joins a *ValueError for every malformed value, so that one run shows them all. The
// Settings is never nil; what is malformed in it is zero.
func Load(flags map[string]string) (*Settings, error) { return load(flags, os.LookupEnv) }

// LoadFlags is Load without the environment: for a command that can destroy, which must not
// take its target or anything about it from there.
func LoadFlags(flags map[string]string) (*Settings, error) {
	return load(flags, func(string) (string, bool) { return "", false })
}

func load(flags map[string]string, lookup func(name string) (string, bool)) (*Settings, error) {
	s := &Settings{sources: map[string]Source{}}
	var faults []error
	v := reflect.ValueOf(s).Elem()
	for _, field := range fields() {
		name, flag := field.Tag.Get("envconfig"), flagName(field)
		value, given := flags[flag]
		shown := "--" + flag
		s.sources[name] = FromFlag
		if !given {
			shown = name
			value, given = lookup(name)
			s.sources[name] = FromEnvironment
		}
		if !given {
			s.sources[name] = FromDefault
			value = field.Tag.Get("default")
			if value == "" {
				continue
			}
		}
		parsed, err := parse(field, value)
		if err != nil {
			faults = append(faults, &ValueError{Name: shown, Value: withoutCredentials(value), Reason: reason(err), Legal: field.Tag.Get("legal")})
			continue
		}
		v.FieldByIndex(field.Index).Set(parsed)
	}
	return s, errors.Join(faults...)
}

// parse decodes one value through envconfig, into a struct of that one field alone: the
// rules for types are envconfig's and those of the Decode methods here, while which value
// wins, and that an empty one is an error, is decided by Load. The variable that envconfig
// reads is the one that Load has chosen.
func parse(field reflect.StructField, value string) (reflect.Value, error) {
	none := reflect.Value{}
	if value == "" {
		return none, errors.New("it is set but empty; unset it to get the default")
	}
	if value != strings.TrimSpace(value) {
		return none, errors.New("it begins or ends with white space")
	}
	one := reflect.New(reflect.StructOf([]reflect.StructField{{
		Name: field.Name,
		Type: field.Type,
		// The name is whole and the prefix empty, so envconfig's fallback to the name
		// without its prefix has nowhere to fall. No variable has this name: it holds
		// the "=" that ends one, so the default is always what is decoded.
		Tag: reflect.StructTag(fmt.Sprintf(`envconfig:"=" default:%q`, value)),
	}}))
	if err := envconfig.Process("", one.Interface()); err != nil {
		return none, err
	}
	parsed := one.Elem().Field(0)
	if err := inChoices(field, value); err != nil {
		return none, err
	}
	if err := inRange(field, parsed); err != nil {
		return none, err
	}
	return parsed, nil
}

// withoutCredentials hides what stands before the host of a URL: values end up in logs.
func withoutCredentials(value string) string {
	scheme, rest, isURL := strings.Cut(value, "://")
	if at := strings.LastIndex(rest, "@"); isURL && at >= 0 {
		return scheme + "://…" + rest[at:]
	}
	return value
}

// reason strips envconfig's own words from its error: they name the wrong variable.
func reason(err error) string {
	var pe *envconfig.ParseError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	return strings.TrimPrefix(err.Error(), "time: ")
}

func inChoices(field reflect.StructField, value string) error {
	choices := field.Tag.Get("choices")
	if choices == "" || slices.Contains(strings.Fields(choices), value) {
		return nil
	}
	return errors.New("not one of its values")
}

func inRange(field reflect.StructField, v reflect.Value) error {
	if low := field.Tag.Get("min"); low != "" && amount(v) < mustAmount(field, low) {
		return fmt.Errorf("less than %s", low)
	}
	if high := field.Tag.Get("max"); high != "" && amount(v) > mustAmount(field, high) {
		return fmt.Errorf("more than %s", high)
	}
	return nil
}

// amount is the value of a Size or a time.Duration, for comparison.
func amount(v reflect.Value) int64 { return v.Int() }

// mustAmount reads a min or max tag. The tags are constants of this package, so a wrong
// one is a bug that the first test meets.
func mustAmount(field reflect.StructField, text string) int64 {
	if field.Type == reflect.TypeFor[time.Duration]() {
		d, err := time.ParseDuration(text)
		if err != nil {
			panic(err)
		}
		return int64(d)
	}
	var s Size
	if err := s.Decode(text); err != nil {
		panic(err)
	}
	return int64(s)
}

// fields are the fields of Settings that hold a setting, in their order.
func fields() []reflect.StructField {
	var all []reflect.StructField
	for field := range reflect.TypeFor[Settings]().Fields() {
		if field.Tag.Get("envconfig") != "" {
			all = append(all, field)
		}
	}
	return all
}

// flagName is the flag of a field's setting: WALSIDECAR_WAL_SIZE is --wal-size.
func flagName(field reflect.StructField) string {
	name := strings.TrimPrefix(field.Tag.Get("envconfig"), Prefix)
	return strings.ToLower(strings.ReplaceAll(name, "_", "-"))
}
