package cli

import (
	"bytes"
	"context"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// TestChatCommands checks that settings reach the server, that a conversation can be saved, cleared
// and loaded, and that an empty line does nothing.
func TestChatCommands(t *testing.T) {
	s := &recorder{}
	srv := httptest.NewServer(s)
	defer srv.Close()
	file := filepath.Join(t.TempDir(), "talk.json")
	var out, stderr bytes.Buffer
	in := strings.Join([]string{"one", "", "/set system Be brief.", "two", "/save FILE", "/save FILE",
		"/clear", "three", "/load FILE", "four", "/set system", "five",
		"/set temperature 0.5", "/set temperature 9", "/set seed x", "/set max_tokens 0", "/set nothing 1",
		"/load /nonexistent", "/nothing", "/etc/passwd", "/exit", "six"}, "\n")
	status := run(ui.Env{Ctx: context.Background(), Stdin: strings.NewReader(strings.ReplaceAll(in, "FILE", file)),
		Stdout: &out, Stderr: &stderr}, []string{"chat", "--server", srv.URL})
	want := []string{
		"chat [{user one}]",
		"chat [{system Be brief.} {user one} {assistant fine} {user two}]",
		"chat [{system Be brief.} {user three}]",
		"chat [{system Be brief.} {user one} {assistant fine} {user two} {assistant fine} {user four}]",
		"chat [{user one} {assistant fine} {user two} {assistant fine} {user four} {assistant fine} {user five}]",
		"chat [{user one} {assistant fine} {user two} {assistant fine} {user four} {assistant fine} " +
			"{user five} {assistant fine} {user /etc/passwd}]",
	}
	if got := strings.Join(s.asked, "\n"); status != 0 || got != strings.Join(want, "\n") {
		t.Errorf("status %d, asked\n%s\nwant\n%s", status, got, strings.Join(want, "\n"))
	}
	if !testutil.InOrder(out.String(), "system Be brief. ... temperature the model's ... 5 messages saved in ... "+
		"the conversation is empty ... 5 messages loaded from ... temperature 0.5 ... there is no command /nothing") {
		t.Errorf("wrote %s", &out)
	}
	if !testutil.InOrder(stderr.String(), "talk.json exists ... not a number from 0 to 2 ... want "+
		"a whole number ... want a number from 1 ... there is no setting \"nothing\" ... /load: open /nonexistent") {
		t.Errorf("standard error has %s", &stderr)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the saved file: %v, %v", info, err)
	}
}

// TestChatWithABaseModel checks that a chat refuses a model without a chat template before the first
// message.
func TestChatWithABaseModel(t *testing.T) {
	srv := httptest.NewServer(&recorder{base: true})
	defer srv.Close()
	var stderr bytes.Buffer
	status := run(ui.Env{Ctx: context.Background(), Stdin: strings.NewReader("hello\n"), Stdout: io.Discard, Stderr: &stderr},
		[]string{"chat", "--server", srv.URL})
	if status != 1 || !testutil.InOrder(stderr.String(), "has no chat template ... shoal run") || strings.Count(stderr.String(), "\n") != 1 {
		t.Errorf("status %d: %s", status, &stderr)
	}
}
