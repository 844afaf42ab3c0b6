package httpapi

import (
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"
)

// document is openapi.json as the tests need it.
type document struct {
	OpenAPI    string                                `json:"openapi"`
	Paths      map[string]map[string]json.RawMessage `json:"paths"`
	Components struct {
		Schemas    map[string]*schema   `json:"schemas"`
		Parameters map[string]parameter `json:"parameters"`
	} `json:"components"`
}

type operation struct {
	Parameters  []parameter `json:"parameters"`
	RequestBody struct {
		Content map[string]struct{ Schema *schema } `json:"content"`
	} `json:"requestBody"`
	Responses map[string]struct {
		Content map[string]struct{ Schema *schema } `json:"content"`
	} `json:"responses"`
}

type parameter struct {
	Ref  string `json:"$ref"`
	Name string `json:"name"`
	In   string `json:"in"`
}

// schema is what openapi.json uses of JSON Schema. TestTheSchemasAreUnderstood finds what
// it would use beyond.
type schema struct {
	Ref         string             `json:"$ref"`
	Description string             `json:"description"`
	Type        string             `json:"type"`
	Format      string             `json:"format"`
	Enum        []any              `json:"enum"`
	Default     any                `json:"default"`
	Minimum     *int64             `json:"minimum"`
	MinLength   int                `json:"minLength"`
	MaxLength   int                `json:"maxLength"`
	MinItems    int                `json:"minItems"`
	MaxItems    int                `json:"maxItems"`
	Required    []string           `json:"required"`
	Properties  map[string]*schema `json:"properties"`
	Additional  *bool              `json:"additionalProperties"`
	Items       *schema            `json:"items"`
	OneOf       []*schema          `json:"oneOf"`
}

func loadDocument(t *testing.T) *document {
	t.Helper()
	var d document
	if err := json.Unmarshal(description, &d); err != nil {
		t.Fatal(err)
	}
	return &d
}

func (d *document) operation(t *testing.T, path, method string) *operation {
	t.Helper()
	raw, ok := d.Paths[path][strings.ToLower(method)]
	if !ok {
		t.Fatalf("%s %s is not described", method, path)
	}
	o := new(operation)
	if err := json.Unmarshal(raw, o); err != nil {
		t.Fatal(err)
	}
	return o
}

// validate checks a JSON value against a schema.
func (d *document) validate(s *schema, text string) error {
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return err
	}
	return d.check(s, v, "")
}

func (d *document) check(s *schema, v any, at string) error {
	if s.Ref != "" {
		name := strings.TrimPrefix(s.Ref, "#/components/schemas/")
		target := d.Components.Schemas[name]
		if target == nil {
			return fmt.Errorf("%s: no schema %s", at, s.Ref)
		}
		return d.check(target, v, at)
	}
	if s.OneOf != nil {
		var errs []string
		for _, one := range s.OneOf {
			if err := d.check(one, v, at); err != nil {
				errs = append(errs, err.Error())
			}
		}
		if len(errs) != len(s.OneOf)-1 {
			return fmt.Errorf("%s: fits %d of %d: %s", at, len(s.OneOf)-len(errs), len(s.OneOf), strings.Join(errs, "; "))
		}
		return nil
	}
	if s.Enum != nil && !slices.Contains(s.Enum, v) {
		return fmt.Errorf("%s: %v is not one of %v", at, v, s.Enum)
	}
	switch v := v.(type) {
	case map[string]any:
		return d.checkObject(s, v, at)
	case []any:
		if s.Type != "array" || len(v) < s.MinItems || s.MaxItems > 0 && len(v) > s.MaxItems {
			return fmt.Errorf("%s: %d items, want %s", at, len(v), s.Type)
		}
		for i := range v {
			if err := d.check(s.Items, v[i], fmt.Sprintf("%s[%d]", at, i)); err != nil {
				return err
			}
		}
	case json.Number:
		n, ok := new(big.Int).SetString(v.String(), 10)
		if s.Type != "integer" || !ok || s.Minimum != nil && n.Cmp(big.NewInt(*s.Minimum)) < 0 || n.BitLen() > 64 {
			return fmt.Errorf("%s: %s, want %s", at, v, s.Type)
		}
	case string:
		if s.Type != "string" || len(v) < s.MinLength || s.MaxLength > 0 && len(v) > s.MaxLength {
			return fmt.Errorf("%s: %q, want %s", at, v, s.Type)
		}
		if s.Format == "date-time" {
			_, err := time.Parse(time.RFC3339Nano, v)
			return err
		}
	case bool:
		if s.Type != "boolean" {
			return fmt.Errorf("%s: a boolean, want %s", at, s.Type)
		}
	default:
		return fmt.Errorf("%s: %v", at, v)
	}
	return nil
}

func (d *document) checkObject(s *schema, v map[string]any, at string) error {
	if s.Type != "object" {
		return fmt.Errorf("%s: an object, want %s", at, s.Type)
	}
	for _, name := range s.Required {
		if _, ok := v[name]; !ok {
			return fmt.Errorf("%s: no %s", at, name)
		}
	}
	for name, one := range v {
		property := s.Properties[name]
		if property == nil {
			if s.Additional != nil && !*s.Additional {
				return fmt.Errorf("%s: %s is not described", at, name)
			}
			continue
		}
		if err := d.check(property, one, at+"."+name); err != nil {
			return err
		}
	}
	return nil
}

func TestTheSchemasAreUnderstood(t *testing.T) {
	var raw struct {
		Components struct{ Schemas json.RawMessage }
	}
	if err := json.Unmarshal(description, &raw); err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(strings.NewReader(string(raw.Components.Schemas)))
	dec.DisallowUnknownFields()
	var all map[string]*schema
	if err := dec.Decode(&all); err != nil {
		t.Fatal(err)
	}
}

// The validator itself finds what is wrong.
func TestTheValidatorFindsFaults(t *testing.T) {
	d := loadDocument(t)
	good := `{"code":"a","message":"b","hint":"c","retriable":false,"outcome_unknown":true,"actual":18446744073709551615}`
	if err := d.validate(d.Components.Schemas["Error"], good); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{
		strings.Replace(good, `"hint":"c",`, "", 1),
		strings.Replace(good, `true`, `"true"`, 1),
		strings.Replace(good, `18446744073709551615`, `-1`, 1),
		strings.Replace(good, `18446744073709551615`, `1.5`, 1),
		strings.Replace(good, `"actual"`, `"actuel"`, 1),
		"[]", "null", "{",
	} {
		if d.validate(d.Components.Schemas["Error"], bad) == nil {
			t.Errorf("%s is taken for an error", bad)
		}
	}
	if err := d.validate(d.Components.Schemas["Event"], `{"caught_up":true,"next":1,"durable":2}`); err != nil {
		t.Error(err)
	}
}
