//go:build unix

package join

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestOwnerOfTokens: root is refused in the folder of another user. Its files would be root's, with mode 0600, and the server
// could answer no machine any more.
func TestOwnerOfTokens(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED: needs root, to change the owner of a folder")
	}
	dir := filepath.Join(t.TempDir(), "lab")
	if _, err := OpenFolder(dir, true); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenFolder(dir, false); err != nil {
		t.Errorf("its own folder: %v", err)
	}
	if err := os.Chown(dir, 65534, 65534); err != nil {
		t.Skipf("NOT TESTED: the owner of a folder cannot be changed here: %v", err)
	}
	if _, err := OpenFolder(dir, false); err == nil || !strings.Contains(err.Error(), "sudo -u ") {
		t.Errorf("the folder of another user: %v, want an error with advice", err)
	}
}
