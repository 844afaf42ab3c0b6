package machine

import (
	"bufio"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// About says what was measured on, when, and by which command.
type About struct {
	CPU      string            `json:"cpu"`
	Cores    int               `json:"cores"`
	Kernel   string            `json:"kernel"`
	Go       string            `json:"go"`
	Date     string            `json:"date"`
	Command  string            `json:"command"`
	Commit   string            `json:"commit"`
	Load     string            `json:"load_average"` // of the last minute, when it began
	Versions map[string]string `json:"versions"`     // of the peers, by name
}

// Describe describes this machine; dir is in the repository.
func Describe(command, dir string) About {
	a := About{
		CPU: processor(), Cores: runtime.NumCPU(), Go: runtime.Version(), Date: time.Now().UTC().Format("2 January 2006, 15:04 MST"),
		Command: command,
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		a.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		a.Load, _, _ = strings.Cut(string(load), " ")
	}
	if out, err := exec.Command("git", "-C", dir, "describe", "--always", "--dirty").Output(); err == nil {
		a.Commit = strings.TrimSpace(string(out))
	}
	return a
}

func processor() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}
