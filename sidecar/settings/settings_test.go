package settings

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"
)

// clean removes every WALSIDECAR_* variable for the length of the test.
func clean(t *testing.T) {
	t.Helper()
	for _, variable := range os.Environ() {
		if name, value, _ := strings.Cut(variable, "="); strings.HasPrefix(name, Prefix) {
			t.Setenv(name, value) // so that it comes back
			_ = os.Unsetenv(name)
		}
	}
}

func TestDefaults(t *testing.T) {
	clean(t)
	s, err := Load(nil)
	if err != nil {
		t.Fatal(err)
	}
	if s.WAL != "./walsidecar-data/wal" || s.Socket != "./walsidecar-data/wal.sock" || s.Admin != "127.0.0.1:9470" ||
		s.ShmWait != "adaptive" || s.Fence != "auto" || s.Volatile != "refuse" || s.Preempt != "auto" || s.HTTP != "off" ||
		s.Stall != 10*time.Second || s.Memory != 512<<20 || s.Store != "" || s.Node != "" || s.WALSize != 0 {
		t.Fatalf("defaults are not those of the design: %+v", s)
	}
	for _, setting := range s.List() {
		if setting.Source != FromDefault || setting.Default == "" || setting.Legal == "" || setting.Meaning == "" {
			t.Errorf("%+v", setting)
		}
	}
}

func TestLegalValues(t *testing.T) {
	long := strings.Repeat("s", MaxSocketPathBytes)
	for _, c := range []struct{ name, value, listed string }{
		{"WAL", "/dev/nvme1n1", "/dev/nvme1n1"},
		{"WAL", "uuid:018f4e7a-0000-7000-8000-0123456789ab", "uuid:018f4e7a-0000-7000-8000-0123456789ab"},
		{"WAL", "ebs:vol-0123456789abcdef0", "ebs:vol-0123456789abcdef0"},
		{"WAL_SIZE", "32MiB", "32MiB"},
		{"WAL_SIZE", "010GiB", "10GiB"}, // decimal: not eight
		{"WAL_SIZE", "33554432B", "32MiB"},
		{"WAL_SIZE", "1TiB", "1TiB"},
		{"WAL_SIZE", "1024MiB", "1GiB"},
		{"MEMORY", "100MB", "100000000B"},
		{"STORE", "none", "none"},
		{"STORE", "/var/lib/objects", "/var/lib/objects"},
		{"STORE", "s3://bucket", "s3://bucket"},
		{"STORE", "s3://b/p/q?endpoint=http://127.0.0.1:9000&region=eu-1&path_style=true", "s3://b/p/q?endpoint=http://127.0.0.1:9000&region=eu-1&path_style=true"},
		{"NODE", "ip-10-0-0-1.eu_west", "ip-10-0-0-1.eu_west"},
		{"NODE", strings.Repeat("n", MaxNodeBytes), strings.Repeat("n", MaxNodeBytes)},
		{"SOCKET", long, long},
		{"ALLOW", "uid:1000,gid:2000,uid:0", "uid:1000,uid:0,gid:2000"},
		{"WAL_IOPS", "500", "500"},
		{"WAL_BANDWIDTH", "125MB", "125000000B"},
		{"HTTP", "off", "off"},
		{"HTTP", "/run/http.sock", "/run/http.sock"},
		{"SHM_WAIT", "spin", "spin"},
		{"SHM_WAIT", "block", "block"},
		{"ADMIN", "off", "off"},
		{"ADMIN", ":9470", ":9470"},
		{"ADMIN", "[::1]:0", "[::1]:0"},
		{"PPROF", "on", "on"},
		{"FENCE", "attach", "attach"},
		{"LATE_WRITES", "1s", "1s"},
		{"LATE_WRITES", "1m30s", "1m30s"},
		{"STALL", "1s", "1s"},
		{"STALL", "1m30s", "1m30s"},
		{"DRAIN", "0s", "0s"},
		{"ON_FATAL", "park", "park"},
	} {
		t.Run(c.name+"="+c.value, func(t *testing.T) {
			clean(t)
			t.Setenv(Prefix+c.name, c.value)
			s, err := Load(nil)
			if err != nil {
				t.Fatal(err)
			}
			if got := listed(t, s, Prefix+c.name); got.Value != c.listed || got.Source != FromEnvironment {
				t.Fatalf("listed as %q from %s, want %q from the environment", got.Value, got.Source, c.listed)
			}
		})
	}
}

func TestMalformedValuesAreErrorsWithNameAndLegalValues(t *testing.T) {
	for _, c := range []struct{ name, value, reason string }{
		{"WAL", "", "set but empty"},
		{"STALL", "", "set but empty"},
		{"NODE", "", "set but empty"},
		{"MEMORY", "", "set but empty"},
		{"FENCE", " auto", "white space"},
		{"WAL", "uuid:42", "36 characters"},
		{"WAL", "ebs:0123", "vol-"},
		{"WAL", "ebs:vol-XYZ", "hexadecimal"},
		{"WAL_SIZE", "010", "no unit"},
		{"WAL_SIZE", "1073741824", "no unit"},
		{"WAL_SIZE", "0x10MiB", "whole decimal"},
		{"WAL_SIZE", "1_000MiB", "whole decimal"},
		{"WAL_SIZE", "1.5GiB", "whole decimal"},
		{"WAL_SIZE", "-1GiB", "whole decimal"},
		{"WAL_SIZE", "+1GiB", "whole decimal"},
		{"WAL_SIZE", "GiB", "whole decimal"},
		{"WAL_SIZE", "1 GiB", "whole decimal"},
		{"WAL_SIZE", "1Gi", "no unit"},
		{"WAL_SIZE", "1gib", "no unit"},
		{"WAL_SIZE", "9999999TiB", "too large"},
		{"WAL_SIZE", "99999999999999999999B", "too large"},
		{"WAL_SIZE", "31MiB", "less than 32MiB"},
		{"MEMORY", "1MiB", "less than 64MiB"},
		{"WAL_IOPS", "0", "1 to 1000000"},
		{"WAL_IOPS", "1000001", "1 to 1000000"},
		{"WAL_IOPS", "0x10", "1 to 1000000"},
		{"WAL_IOPS", "+10", "1 to 1000000"},
		{"WAL_BANDWIDTH", "125", "no unit"},
		{"WAL_BANDWIDTH", "999kB", "less than 1MB"},
		{"STORE", "gs://bucket", "unknown scheme"},
		{"STORE", "s3://", "s3://bucket/prefix"},
		{"STORE", "s3://key:secret@bucket/", "credentials"},
		{"STORE", "s3://bucket?regoin=eu", `no parameter "regoin"`},
		{"STORE", "s3://bucket?path_style=yes", "true or false"},
		{"NODE", "-a", "byte 0"},
		{"NODE", "a/b", "byte 1"},
		{"NODE", strings.Repeat("n", MaxNodeBytes+1), "64 bytes long"},
		{"SOCKET", strings.Repeat("s", MaxSocketPathBytes+1), "108 bytes long"},
		{"SOCKET", "@walsidecar", "abstract"},
		{"ALLOW", "1000", "not uid:N or gid:N"},
		{"ALLOW", "uid:root", "not uid:N or gid:N"},
		{"ALLOW", "uid:0x10", "not uid:N or gid:N"},
		{"ALLOW", "uid:1,", "not uid:N or gid:N"},
		{"ALLOW", "uid:4294967296", "not uid:N or gid:N"},
		{"HTTP", strings.Repeat("s", MaxSocketPathBytes+1), "108 bytes long"},
		{"HTTP", "@walsidecar", "abstract"},
		{"SHM_WAIT", "sometimes", "not one of its values"},
		{"ADMIN", "9470", "not HOST:PORT"},
		{"ADMIN", "localhost:http", "not a number"},
		{"ADMIN", "localhost:65536", "not a number"},
		{"ADMIN", "localhost:+80", "not a number"},
		{"PPROF", "true", "not one of its values"},
		{"FENCE", "yes", "not one of"},
		{"FENCE_VOLATILE", "yes", "not one of"},
		{"PREEMPT", "yes", "not one of"},
		{"LATE_WRITES", "300", "missing unit"},
		{"LATE_WRITES", "999ms", "less than 1s"},
		{"LATE_WRITES", "25h", "more than 24h"},
		{"STALL", "10", "missing unit"},
		{"STALL", "ten", "invalid duration"},
		{"STALL", "500ms", "less than 1s"},
		{"STALL", "11m", "more than 10m"},
		{"STALL", "-10s", "less than 1s"},
		{"ON_FATAL", "PARK", "not one of its values"},
	} {
		t.Run(c.name+"="+c.value, func(t *testing.T) {
			clean(t)
			name := Prefix + c.name
			t.Setenv(name, c.value)
			s, err := Load(nil)
			var fault *ValueError
			if !errors.As(err, &fault) || !errors.Is(err, ErrMalformed) {
				t.Fatalf("got %v, want a ValueError", err)
			}
			if fault.Name != name || fault.Legal != listed(t, s, name).Legal || !strings.Contains(fault.Reason, c.reason) {
				t.Fatalf("name %q, legal %q, reason %q; want %q in the reason", fault.Name, fault.Legal, fault.Reason, c.reason)
			}
			if text := err.Error(); !strings.Contains(text, name) || !strings.Contains(text, fault.Legal) {
				t.Fatalf("the message must hold name and legal values: %s", text)
			}
		})
	}
}

func TestSecretsInAStoreURLAreRefused(t *testing.T) {
	clean(t)
	t.Setenv("WALSIDECAR_STORE", "s3://key:hunter2@bucket/")
	if _, err := Load(nil); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Fatalf("the message repeats the secret: %v", err)
	}
}

func TestAllMalformedValuesAreReportedAtOnce(t *testing.T) {
	clean(t)
	t.Setenv("WALSIDECAR_STALL", "10")
	t.Setenv("WALSIDECAR_MEMORY", "512")
	_, err := Load(map[string]string{"fence": "yes"})
	for _, name := range []string{"WALSIDECAR_STALL", "WALSIDECAR_MEMORY", "--fence"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not named in: %v", name, err)
		}
	}
}

func TestUnprefixedVariableIsNeverRead(t *testing.T) {
	clean(t)
	for _, name := range []string{"WAL", "STORE", "NODE", "SOCKET", "STALL", "MEMORY", "FENCE"} {
		t.Setenv(name, "nonsense")
	}
	s, err := Load(nil)
	if err != nil {
		t.Fatal(err)
	}
	if s.WAL != "./walsidecar-data/wal" || s.Store != "" || s.Node != "" {
		t.Fatalf("an unprefixed variable was used: %+v", s)
	}
}

func TestFlagOverridesEnvironment(t *testing.T) {
	clean(t)
	t.Setenv("WALSIDECAR_STALL", "30s")
	t.Setenv("WALSIDECAR_MEMORY", "1GiB")
	s, err := Load(map[string]string{"stall": "20s"})
	if err != nil {
		t.Fatal(err)
	}
	if s.Stall != 20*time.Second || s.SourceOf("WALSIDECAR_STALL") != FromFlag {
		t.Errorf("stall is %s from %s, want 20s from the flag", s.Stall, s.SourceOf("WALSIDECAR_STALL"))
	}
	if s.Memory != 1<<30 || s.SourceOf("WALSIDECAR_MEMORY") != FromEnvironment {
		t.Errorf("memory is %s from %s, want 1GiB from the environment", s.Memory, s.SourceOf("WALSIDECAR_MEMORY"))
	}
}

func TestFlagHidesAMalformedVariable(t *testing.T) {
	clean(t)
	t.Setenv("WALSIDECAR_STALL", "nonsense")
	if _, err := Load(map[string]string{"stall": "20s"}); err != nil {
		t.Fatal(err)
	}
}

func TestAnEmptyFlagIsAnError(t *testing.T) {
	clean(t)
	if _, err := Load(map[string]string{"wal": ""}); !errors.Is(err, ErrMalformed) {
		t.Fatalf("got %v", err)
	}
}

func TestUnknownVariablesAreNamedWithTheNearestSetting(t *testing.T) {
	clean(t)
	t.Setenv("WALSIDECAR_SOKET", "/run/x")
	t.Setenv("WALSIDECAR_WALSIZE", "1GiB")
	t.Setenv("WALSIDECAR_NODES", "a")
	t.Setenv("WALSIDECAR_wal", "x") // names are case-sensitive
	want := []UnknownVariable{
		{"WALSIDECAR_NODES", "WALSIDECAR_NODE"},
		{"WALSIDECAR_SOKET", "WALSIDECAR_SOCKET"},
		{"WALSIDECAR_WALSIZE", "WALSIDECAR_WAL_SIZE"},
		{"WALSIDECAR_wal", "WALSIDECAR_WAL"},
	}
	got := Unknown()
	if len(got) != len(want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("got %v, want %v", got[i], want[i])
		}
	}
}

func TestWhatKubernetesInjectsIsIgnored(t *testing.T) {
	clean(t)
	for _, name := range []string{"SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_ADMIN", "PORT", "PORT_9470_TCP", "PORT_9470_TCP_ADDR"} {
		t.Setenv(Prefix+name, "tcp://10.96.0.7:9470")
	}
	if got := Unknown(); len(got) != 0 {
		t.Fatalf("got %v", got)
	}
	if _, err := Load(nil); err != nil {
		t.Fatal(err)
	}
}

func TestParsedShapes(t *testing.T) {
	clean(t)
	s, err := Load(map[string]string{"wal": "uuid:018f4e7a-0000-7000-8000-0123456789ab", "allow": "uid:1,gid:2"})
	if err != nil {
		t.Fatal(err)
	}
	if id, ok := s.WAL.UUID(); !ok || id.String() != "018f4e7a-0000-7000-8000-0123456789ab" {
		t.Errorf("log UUID %v, %v", id, ok)
	}
	if vol, ok := WALPath("ebs:vol-0abc").EBSVolume(); !ok || vol != "vol-0abc" {
		t.Errorf("volume %q, %v", vol, ok)
	}
	if len(s.Allow.UIDs) != 1 || s.Allow.UIDs[0] != 1 || len(s.Allow.GIDs) != 1 || s.Allow.GIDs[0] != 2 {
		t.Errorf("allow %+v", s.Allow)
	}
}

func FuzzSize(f *testing.F) {
	f.Fuzz(func(t *testing.T, text string) {
		var s Size
		if s.Decode(text) != nil {
			return
		}
		var again Size
		if err := again.Decode(s.String()); err != nil || again != s {
			t.Fatalf("%q is %d, written as %s and read back as %d: %v", text, s, s, again, err)
		}
	})
}

// listed is the entry of that name in s.List.
func listed(t *testing.T, s *Settings, name string) Setting {
	t.Helper()
	for _, setting := range s.List() {
		if setting.Name == name {
			return setting
		}
	}
	t.Fatalf("%s is not listed", name)
	return Setting{}
}
