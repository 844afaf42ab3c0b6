// Package report keeps results, and makes tables and plots of them.
package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/walsidecar/walsidecar/bench/drive"
	"github.com/walsidecar/walsidecar/bench/machine"
	"github.com/walsidecar/walsidecar/bench/scenario"
	"github.com/walsidecar/walsidecar/load"
)

// Results is a file of results.
type Results struct {
	About machine.About  `json:"about"`
	Runs  []drive.Result `json:"runs"`
	Fio   []Fio          `json:"fio,omitempty"`

	Profiles []Profile           `json:"profiles,omitempty"`
	Steady   []scenario.Steady   `json:"steady,omitempty"`
	Recovery []scenario.Recovery `json:"recovery,omitempty"`
	Takeover []scenario.Takeover `json:"takeover,omitempty"`
	Memory   []scenario.Memory   `json:"memory,omitempty"`
	Together []scenario.Together `json:"together,omitempty"`
}

// Profile is a cell of walsidecar on a device that is shaped like a volume type.
type Profile struct {
	Store  string `json:"store"`
	Repeat int    `json:"repeat"`
	load.Report
}

// Load reads a file of results.
func Load(path string) (*Results, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var r Results
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &r, nil
}

// Save writes the file: one line for each run.
func (r *Results) Save(path string) error {
	var b bytes.Buffer
	about, err := json.MarshalIndent(r.About, "  ", "  ")
	if err != nil {
		return err
	}
	fmt.Fprintf(&b, "{\n  \"about\": %s", about)
	err = errors.Join(saveRows(&b, "runs", r.Runs), saveRows(&b, "fio", r.Fio), saveRows(&b, "profiles", r.Profiles), saveRows(&b, "steady", r.Steady), saveRows(&b, "recovery", r.Recovery),
		saveRows(&b, "takeover", r.Takeover), saveRows(&b, "memory", r.Memory), saveRows(&b, "together", r.Together))
	if err != nil {
		return err
	}
	b.WriteString("\n}\n")
	unfinished := path + ".unfinished"
	if err := os.WriteFile(unfinished, b.Bytes(), 0o644); err != nil {
		return err
	}
	return os.Rename(unfinished, path)
}

// saveRows writes a list, one line for each element; an empty one not at all.
func saveRows[T any](b *bytes.Buffer, name string, rows []T) error {
	if len(rows) == 0 {
		return nil
	}
	fmt.Fprintf(b, ",\n  %q: [", name)
	for i := range rows {
		one, err := json.Marshal(&rows[i])
		if err != nil {
			return err
		}
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(b, "\n    %s", one)
	}
	b.WriteString("\n  ]")
	return nil
}

// CellName is a cell in words.
func CellName(c drive.Cell) string {
	size := fmt.Sprintf("%d B", c.Size)
	if c.Size%1024 == 0 {
		size = fmt.Sprintf("%d KiB", c.Size/1024)
	}
	if c.Pipelined() {
		return size + ", pipelined"
	}
	if c.Producers == 1 {
		return size + ", 1 producer"
	}
	return fmt.Sprintf("%s, %d producers", size, c.Producers)
}

// Median is the middle of the values, or the mean of the two in the middle; 0 of none.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}
