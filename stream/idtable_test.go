package stream

import (
	"testing"
)

// The table holds what a map would, whatever comes and goes, and gives memory back.
func TestIDTableIsAMap(t *testing.T) {
	random := random(t)
	var table idTable[int]
	model := map[ID]*int{}
	if table.get(1) != nil {
		t.Error("an empty table holds something")
	}
	table.remove(1)
	for step := range 50_000 {
		id := ID(1 + random.IntN(200)) // consecutive, as ids are, and so that most are met again
		if random.IntN(10) == 0 {
			id = ID(random.Uint64() | 1)
		}
		grow := step/5000%2 == 0
		if random.IntN(4) > 0 == grow {
			value := new(int)
			table.put(id, value)
			model[id] = value
		} else {
			for id := range model { // any
				table.remove(id)
				delete(model, id)
				break
			}
			table.remove(id)
			delete(model, id)
		}
		if got, want := table.get(id), model[id]; got != want {
			t.Fatalf("step %d: id %d", step, id)
		}
		if step%500 != 0 {
			continue
		}
		if table.count != len(model) {
			t.Fatalf("step %d: %d ids, want %d", step, table.count, len(model))
		}
		for id, want := range model {
			if table.get(id) != want {
				t.Fatalf("step %d: id %d is lost", step, id)
			}
		}
		seen := 0
		for id, value := range table.all {
			if seen++; model[id] != value {
				t.Fatalf("step %d: id %d is in the table", step, id)
			}
		}
		if seen != len(model) {
			t.Fatalf("step %d: %d ids are in the table, want %d", step, seen, len(model))
		}
	}
	for id := range model {
		table.remove(id)
	}
	if table.count != 0 || len(table.slots) != minIDSlots {
		t.Errorf("%d ids in %d slots are left", table.count, len(table.slots))
	}
}
