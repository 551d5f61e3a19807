package lab

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/eval/suite"
)

// loadSuite reads a suite's questions from a folder of --data, or the ones that come with Shoal if data is empty.
// Errors name the folder.
func loadSuite(s *suite.Suite, data, folder string, tasks []string, limit int) ([]suite.Question, error) {
	if data == "" {
		return s.Load(s.StandIns(), tasks, limit)
	}
	dir := filepath.Join(data, folder)
	info, err := os.Stat(dir)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is not a folder", dir)
	}
	if err != nil {
		return nil, fmt.Errorf("--data: no folder with the files of %s: %w", s.Name, err)
	}
	questions, err := s.Load(os.DirFS(dir), tasks, limit)
	if err != nil {
		return nil, fmt.Errorf("--data: folder %s: %w", dir, err)
	}
	return questions, nil
}

// resumeHint prints how to continue an interrupted run, and returns its error. out is the folder of its answers, or "".
func resumeHint(e *ui.Env, out string, err error) error {
	switch {
	case e.Ctx.Err() == nil:
	case out != "":
		fmt.Fprintf(e.Stderr, "The answers are in %s. The same command continues.\n", out)
	default:
		fmt.Fprintln(e.Stderr, "The answers are lost. With --out DIR, an interrupted run continues.")
	}
	return err
}
