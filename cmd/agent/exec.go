package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
)

// execute replaces this program by a command that has the environment of the agent: that of the container, and the variables of the file as
// loadEnvironment reads them. A shell would read the file in another way.
func execute(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("agent exec", flag.ContinueOnError)
	flags.SetOutput(out)
	file := flags.String("env-file", "", "File of environment variables, as of agent serve.")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() == 0 {
		return errors.New("a command is required")
	}
	if *file != "" {
		if _, err := loadEnvironment(*file); err != nil {
			return err
		}
	}
	program, err := exec.LookPath(flags.Arg(0))
	if err != nil {
		return err
	}
	if err := syscall.Exec(program, flags.Args(), os.Environ()); err != nil {
		return fmt.Errorf("run %s: %w", program, err)
	}
	return nil
}
