package report

import (
	"fmt"
	"os"
	"strings"
)

// WriteBetween replaces what stands between the markers of a name in a page. The page must
// have them, each on a line of its own: <!-- bench NAME begin --> and <!-- bench NAME end -->.
func WriteBetween(page, name, text string) error {
	old, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	begin, end := "<!-- bench "+name+" begin -->\n", "<!-- bench "+name+" end -->"
	before, rest, ok := strings.Cut(string(old), begin)
	if !ok {
		return fmt.Errorf("%s has no line %q", page, strings.TrimSpace(begin))
	}
	_, after, ok := strings.Cut(rest, end)
	if !ok {
		return fmt.Errorf("%s has no line %q after that of the beginning", page, end)
	}
	return os.WriteFile(page, []byte(before+begin+strings.Trim(text, "\n")+"\n"+end+after), 0o644)
}
