package settings

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// docsTable is the table of all settings as docs/operations.md has it.
func docsTable() string {
	var b strings.Builder
	b.WriteString("| setting | default | legal | meaning |\n| --- | --- | --- | --- |\n")
	for _, s := range Describe() {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", s.Name, s.Default, s.Legal, s.Meaning)
	}
	return b.String()
}

// docs/operations.md lists every setting as `walsidecar config` does, and no page speaks of one
// that there is not.
func TestTheDocsListEverySettingAndNoOther(t *testing.T) {
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	if want := docsTable(); !strings.Contains(string(text), "\n\n"+want+"\n") {
		t.Errorf("docs/operations.md does not have this table:\n%s", want)
	}
	var known []string
	for _, s := range Describe() {
		known = append(known, s.Name)
	}
	for _, page := range []string{"README.md", "docs/operations.md", "docs/design.md", "docs/failover.md", "docs/protocol.md", "docs/durability.md", "docs/format.md"} {
		text, err := os.ReadFile("../../" + page)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range regexp.MustCompile(`WALSIDECAR_[A-Z][A-Z_]*`).FindAllString(string(text), -1) {
			if !slices.Contains(known, name) && !fromKubernetes(name) {
				t.Errorf("%s speaks of %s, which is no setting", page, name)
			}
		}
	}
}
