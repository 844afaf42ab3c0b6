package settings

import (
	"cmp"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
)

// Describe lists every setting with its flag, default, legal values and meaning, and
// without a value. It is what flags are made from.
func Describe() []Setting {
	var all []Setting
	for _, field := range fields() {
		all = append(all, Setting{
			Name:    field.Tag.Get("envconfig"),
			Flag:    flagName(field),
			Default: cmp.Or(field.Tag.Get("default"), field.Tag.Get("unset")),
			Legal:   field.Tag.Get("legal"),
			Meaning: field.Tag.Get("meaning"),
		})
	}
	return all
}

// List is Describe with the values of s and where each came from.
func (s *Settings) List() []Setting {
	all := Describe()
	v := reflect.ValueOf(s).Elem()
	for i, field := range fields() {
		all[i].Source = s.sources[all[i].Name]
		if value := v.FieldByIndex(field.Index); !value.IsZero() || field.Tag.Get("default") != "" {
			all[i].Value = fmt.Sprint(value.Interface())
		}
	}
	return all
}

// SourceOf tells where the setting of that name (WALSIDECAR_WAL) came from.
func (s *Settings) SourceOf(name string) Source { return s.sources[name] }

// UnknownVariable is a WALSIDECAR_* variable that is no setting, most likely a typing error.
type UnknownVariable struct {
	Name    string
	Nearest string // the known setting that it is most like
}

func (u UnknownVariable) String() string {
	return fmt.Sprintf("unknown setting %s; the nearest known one is %s", u.Name, u.Nearest)
}

// Unknown lists the WALSIDECAR_* variables of the environment that are no settings, by
// name. What Kubernetes injects for a service named walsidecar (WALSIDECAR_SERVICE_* and
// WALSIDECAR_PORT*) is not among them.
func Unknown() []UnknownVariable {
	var known []string
	for _, field := range fields() {
		known = append(known, field.Tag.Get("envconfig"))
	}
	var unknown []UnknownVariable
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		if !strings.HasPrefix(name, Prefix) || slices.Contains(known, name) || fromKubernetes(name) {
			continue
		}
		near, _ := nearest(name, known, len(name))
		unknown = append(unknown, UnknownVariable{Name: name, Nearest: near})
	}
	slices.SortFunc(unknown, func(a, b UnknownVariable) int { return strings.Compare(a.Name, b.Name) })
	return unknown
}

// fromKubernetes reports whether a kubelet sets that variable in every pod beside a
// service named walsidecar.
func fromKubernetes(name string) bool {
	return strings.HasPrefix(name, Prefix+"SERVICE_") || strings.HasPrefix(name, Prefix+"PORT")
}

// nearest returns the one of known with the smallest edit distance to name; ok reports
// whether that distance is at most limit.
func nearest(name string, known []string, limit int) (best string, ok bool) {
	least := -1
	for _, k := range known {
		if d := distance(name, k); least < 0 || d < least {
			best, least = k, d
		}
	}
	return best, least >= 0 && least <= limit
}

// distance is the Levenshtein distance between a and b: how many bytes to insert, drop or
// replace.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
