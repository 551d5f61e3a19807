package cluster_test

import (
	"context"
	"encoding/binary"
	"path/filepath"
	"testing"
	"time"

	"shoal/collective/natsbus"
	"shoal/jobs"
	"shoal/jobs/journal"
)

// journals are the records in the data directory of a coordinator that has
// ended, by job: what was committed, whatever any process said of it.
func journals(t testing.TB, dir string) map[string][]entry {
	t.Helper()
	ns, err := natsbus.Start(natsbus.Config{Name: "jobs", Cluster: "jobs", Alone: true, StoreDir: filepath.Join(dir, "jetstream"), StoreBytes: 2 << 30, SyncAlways: true})
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Shutdown()
	nc, err := ns.Connect("auditor")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	log, err := journal.OpenJetStream(ctx, nc, jobs.StoreBytes, 1)
	if err != nil {
		nc.Close()
		t.Fatal(err)
	}
	defer log.Close()
	out := map[string][]entry{}
	err = log.Scan(ctx, func(name string, _ uint64, b []byte) error {
		if len(b) > 16 && string(b[:4]) == "SHJ1" { // jobs/record.go
			out[name] = append(out[name], entry{int(b[4]), int(binary.LittleEndian.Uint32(b[12:]))})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
