package natsbus

import (
	"io"
	"log/slog"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// The test binary is also the program of the ranks that TestProcesses starts.
func TestMain(m *testing.M) {
	if os.Getenv(rankProcessVar) != "" {
		os.Exit(rankProcess())
	}
	goleak.VerifyTestMain(m)
}

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))
