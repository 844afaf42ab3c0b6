package main

import (
	"testing"

	"github.com/walsidecar/walsidecar/bench/drive"
)

func TestCellsAreNamed(t *testing.T) {
	for text, want := range map[string]drive.Cell{
		"1024x16": {Size: 1024, Producers: 16, InFlight: 1}, "128xpipe": {Size: 128, Producers: 1, InFlight: 1024},
	} {
		if got, err := parseCell(text); err != nil || got != want {
			t.Errorf("%s is %+v, %v", text, got, err)
		}
	}
	for _, bad := range []string{"", "1024", "x16", "1024xmany", "0x1", "1024x0", "-1x1"} {
		if got, err := parseCell(bad); err == nil {
			t.Errorf("%q is taken for %+v", bad, got)
		}
	}
}

// The full plan holds every cell of the quick one, so that both fill the same tables.
func TestTheFullPlanHoldsTheQuickOne(t *testing.T) {
	all := map[drive.Cell]bool{}
	for _, c := range plans["full"].cells {
		if all[c] {
			t.Errorf("%+v twice", c)
		}
		all[c] = true
	}
	for _, c := range plans["quick"].cells {
		if !all[c] {
			t.Errorf("%+v is not in the full plan", c)
		}
	}
}
