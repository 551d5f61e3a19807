// Package cli is the command line. It turns flags into a config and runs it.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/shoal-llm/shoal/internal/cli/lab"
	"github.com/shoal-llm/shoal/internal/cli/launch"
	"github.com/shoal-llm/shoal/internal/cli/models"
	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
	"github.com/shoal-llm/shoal/internal/options"
)

type commands struct {
	Config      configFlag  `type:"path" placeholder:"FILE" help:"${config}"`
	ShowVersion versionFlag `name:"version" env:"-" help:"Print the version and the build."`

	Demo demoCmd   `cmd:"" group:"use" help:"Start four node processes, stream answers from the bundled model, and stop."`
	Chat chatCmd   `cmd:"" group:"use" help:"Chat with a model. Starts the model if no server has it."`
	Run  runCmd    `cmd:"" group:"use" help:"Ask a model one question and stream the answer, or chat with it."`
	Up   launch.Up `cmd:"" group:"use" help:"Start a local cluster of node processes and serve the OpenAI API."`

	Status statusCmd `cmd:"" group:"watch" aliases:"ps" help:"Show a running cluster: nodes, shares, memory, sequences."`
	Top    topCmd    `cmd:"" group:"watch" help:"Show a running cluster and refresh it: load, caches, nodes, faults."`
	Events eventsCmd `cmd:"" group:"watch" help:"Show the events of a running cluster and their effect on requests."`
	Cache  cacheCmd  `cmd:"" group:"watch" help:"Show the prefix cache of a running cluster, or empty it."`

	Keygen      launch.KeygenCmd      `cmd:"" group:"machines" help:"Make a cluster key. It authenticates and encrypts all traffic between processes."`
	Coordinator launch.CoordinatorCmd `cmd:"" group:"machines" help:"Run the coordinator: API, batcher, placement."`
	Node        launch.NodeCmd        `cmd:"" group:"machines" help:"Run one node. It joins a coordinator."`
	Token       launch.TokenCmd       `cmd:"" group:"machines" help:"Make, list and revoke the tokens that let machines join a cluster."`
	Drain       drainCmd              `cmd:"" group:"machines" help:"Move a node's work to the other nodes before you stop it."`
	Undrain     undrainCmd            `cmd:"" group:"machines" help:"Give a drained node a share of the model again."`
	Store       storeCmd              `cmd:"" group:"machines" help:"List and change the processes that keep a copy of the store of jobs and placement."`

	Pull     models.PullCmd     `cmd:"" group:"models" help:"Fetch a model from a hub, a registry or a URL."`
	Models   models.ModelsCmd   `cmd:"" group:"models" help:"List the models on this machine and the memory that they need, or remove one."`
	Verify   models.VerifyCmd   `cmd:"" group:"models" help:"Check a checkpoint and show its memory per node."`
	Plan     models.PlanCmd     `cmd:"" group:"models" help:"Calculate the memory of weights and caches and the largest batch from a config."`
	GPU      gpuCmd             `cmd:"" name:"gpu" group:"models" help:"List the graphics cards of this machine, and check that they compute the bits of the CPU."`
	Tokenize models.TokenizeCmd `cmd:"" group:"models" help:"Show the tokens of a text."`

	// The aliases are the commands that became lab.
	Lab lab.Lab `cmd:"" group:"models" aliases:"bench,eval" help:"Measure speed and accuracy: decode, prefill, caches, drafts, retrieval from long prompts, perplexity, your own questions."`

	Completion completionCmd `cmd:"" group:"program" help:"Write the completion script for bash, zsh or fish."`
	Man        manCmd        `cmd:"" group:"program" help:"Write the manual page shoal(1)."`
	Version    versionCmd    `cmd:"" group:"program" help:"Print the build, the wire version and the arithmetic of this program."`
}

const description = `Serve one large language model, split across all your machines.

  shoal demo                                   see it work: four processes, one model
  shoal up                                     serve on this machine, API on 127.0.0.1:8080
  shoal chat                                   chat with that model
  shoal run "What is a goroutine?"             ask it one question
  shoal chat MODEL                             start a model and chat: a folder, a .gguf file, or fry
  shoal up --cluster NAME                      several machines: run this on the first one,
  shoal node --join ADDRESS --token TOKEN      and the line that it prints on the others

Every flag has an environment variable, which --help shows (--kv-memory: SHOAL_KV_MEMORY;
--nodes of up: SHOAL_UP_NODES), and can be set in a config file (--config).`

// groups are the groups of commands in `shoal --help`.
var groups = []kong.Group{
	{Key: "use", Title: "Use a model:"},
	{Key: "watch", Title: "Watch a cluster:"},
	{Key: "machines", Title: "Run a cluster on several machines:"},
	{Key: "models", Title: "Check models and measure:"},
	{Key: "program", Title: "This program:"},
}

// exitInterrupted is the exit status of a command that a signal ended early, or that got a
// second signal during its shutdown.
const exitInterrupted = 130

// Main runs the command line and returns the exit status: 0 success, 1 failure, 2 wrong usage,
// 130 interrupted. The first Ctrl-C or SIGTERM starts the shutdown of a command, which may
// drain requests. A second one, after more than sameStop, ends the process at once.
func Main(args []string) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	sigint := &ui.Interrupts{}
	go func() { // ends with the process
		for s := <-signals; s == os.Interrupt && sigint.Handled(); s = <-signals {
		}
		cancel()
		s := secondSignal(signals)
		fmt.Fprintf(os.Stderr,
			"shoal: %v during shutdown: stopped at once. Running requests are cut off; durable jobs continue when a coordinator runs again.\n", s)
		os.Exit(exitInterrupted)
	}()
	return run(ui.Env{Ctx: ctx, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: &ui.Console{File: os.Stderr}, Interrupts: sigint}, args)
}

// sameStop is the time after the first signal in which others belong to the same request to stop:
// timeout(1) signals its command, and then the process group that the command is in.
const sameStop = 100 * time.Millisecond

// secondSignal waits for a signal that comes more than sameStop after the first one, which the caller
// has just received.
func secondSignal(signals <-chan os.Signal) os.Signal {
	for first := time.Now(); ; {
		if s := <-signals; time.Since(first) > sameStop {
			return s
		}
	}
}

// parser returns a parser that stores the flags of a command line in c.
func parser(c *commands, e *ui.Env) (*commandLine, error) {
	l := &commandLine{env: e, retired: map[*kong.Flag]string{}, foreign: map[*kong.Flag]string{}}
	var err error
	l.Kong, err = kong.New(c, kong.Name("shoal"), kong.Description(description), environmentVariables(l.retired, l.foreign),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}), kong.Writers(e.Stdout, e.Stderr), launch.Variables(),
		kong.Vars{"config": configHelp, "answer": strconv.Itoa(defaultAnswer)}, kong.Vars(lab.Variables()),
		kong.ExplicitGroups(groups), launch.PlainValues())
	return l, err
}

func run(e ui.Env, args []string) (status int) {
	options.NameFlags()
	parser, err := parser(new(commands), &e)
	if err != nil {
		fmt.Fprintln(e.Stderr, "shoal:", err)
		return 2
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	if _, err := kernel.Implementation(); err != nil {
		fmt.Fprintln(e.Stderr, "shoal:", err)
		return 2
	}
	k, err := parser.Parse(args)
	switch {
	case errors.Is(err, errShown):
		return 0
	case err != nil && e.Ctx.Err() != nil:
		return exitInterrupted
	case err != nil:
		fmt.Fprintf(e.Stderr, "shoal: %s\nshoal: see `shoal --help`, or `shoal COMMAND --help`\n", usageError(err, k))
		return 2
	}
	if err = checkFlags(k); err == nil {
		err = parser.runCommand(k)
	}
	var code ui.Exit
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	case e.Ctx.Err() != nil && errors.Is(err, context.Canceled):
		return exitInterrupted
	}
	fmt.Fprintln(e.Stderr, "shoal:", ui.PlainError(err))
	return 1
}

// checkFlags checks the flags of the command against the table of options.
func checkFlags(k *kong.Context) error {
	for _, f := range k.Flags() {
		if err := options.CheckValue(f.Name, f.Tag, f.Target); err != nil {
			return err
		}
		if err := checkCondition(k, f); err != nil {
			return err
		}
	}
	return nil
}

// checkCondition refuses a flag that has no effect without another flag, or with it.
func checkCondition(k *kong.Context, f *kong.Flag) error {
	name, with, ok := options.Condition(f.Help)
	if !ok || !given(k, f) {
		return nil
	}
	on := slices.ContainsFunc(k.Flags(), func(o *kong.Flag) bool {
		return o.Name == name && !o.Target.IsZero() && (!o.HasDefault || given(k, o))
	})
	if on == with {
		return nil
	}
	self := "--" + f.Name
	if i := slices.IndexFunc(f.Tag.Envs, isSet); i >= 0 {
		self += " (" + f.Tag.Envs[i] + ")"
	}
	if with {
		return fmt.Errorf("%s has no effect without --%s: set --%s, or remove %s", self, name, name, self)
	}
	return fmt.Errorf("%s has no effect with --%s: remove one of the two", self, name)
}
