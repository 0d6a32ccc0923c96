// Command stubpulumi replaces the pulumi CLI when thousands of Stacks are measured. It changes nothing and takes almost no time, so that
// the measurement shows everything else. It answers the commands that the agent runs, reports the program's output as the engine does, and
// logs each command, and the time of each update, in files beside the executable. An update fails if the program's output ends with "-fails-" and
// the name of the stack. An update of the project "waves" takes a moment, so that it can be seen how many of them run at once. For a project whose
// name begins with "real" it runs the CLI to which the link "real" beside the executable points.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	// version is a version that has all features that the agent can use.
	version = "v3.259.0"
	// stackNotFound is the exit code of the CLI if the stack does not exist.
	stackNotFound = 6
	// slowProject is the project whose updates take updateTime.
	slowProject, updateTime = "waves", time.Second
)

var (
	projectName   = regexp.MustCompile(`(?m)^name: "?([^"\n]+)"?$`)
	programOutput = regexp.MustCompile(`(?m)^  "?value"?: "?([^"\n]+)"?$`)
)

func main() {
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		code = 1
	}
	os.Exit(code)
}

// stub is one call of the stub.
type stub struct {
	dir            string // directory of the executable
	start          time.Time
	project, stack string
	value          string // output of the program
}

func run(args []string) (int, error) {
	executable, err := os.Executable()
	if err != nil {
		return 0, err
	}
	args = slices.DeleteFunc(slices.Clone(args), func(arg string) bool { return arg == "--non-interactive" })
	if len(args) == 0 {
		return 0, fmt.Errorf("there is no command")
	}
	if args[0] == "version" {
		fmt.Println(version)
		return 0, nil
	}
	s := &stub{start: time.Now(), dir: filepath.Dir(executable), stack: flagOf(args, "--stack")}
	content, err := os.ReadFile("Pulumi.yaml")
	if err != nil {
		return 0, err
	}
	s.project = first(projectName, content)
	s.value = first(programOutput, content)
	if strings.HasPrefix(s.project, "real") {
		real := filepath.Join(s.dir, "real")
		return 0, syscall.Exec(real, append([]string{"pulumi"}, os.Args[1:]...), os.Environ())
	}
	return s.command(args)
}

func (s *stub) command(args []string) (int, error) {
	command := args[0]
	if command == "stack" {
		command = strings.Join(args[:2], " ")
	}
	state := filepath.Join(s.dir, "stacks", s.project+"."+s.stack)
	switch command {
	case "whoami":
		return 0, nil
	case "stack init":
		if _, err := os.Stat(state); err == nil {
			return 0, fmt.Errorf("stack '%s' already exists", s.stack)
		}
		return 0, s.note(command, os.WriteFile(state, nil, 0o600))
	case "stack rm":
		return 0, s.note(command, os.Remove(state))
	case "up", "destroy":
		if _, err := os.Stat(state); err != nil {
			fmt.Fprintf(os.Stderr, "error: no stack named '%s' found\n", s.stack)
			return stackNotFound, nil
		}
		if s.project == slowProject {
			time.Sleep(updateTime)
		}
		if command == "up" && strings.HasSuffix(s.value, "-fails-"+s.stack) {
			return 0, errors.Join(s.noteTime(), errors.New("the program says that this stack fails"))
		}
		return 0, s.note(command, errors.Join(s.report(command, flagOf(args, "--event-log")), s.noteTime()))
	}
	return 0, fmt.Errorf("the stub has no command %q", args)
}

// note adds the command to the file with all calls, unless the command failed.
func (s *stub) note(command string, err error) error {
	if err != nil {
		return err
	}
	return s.add("calls", fmt.Sprintf("%s\t%s\t%s\t%s\n", s.project, s.stack, command, s.value))
}

// noteTime adds when the command began and ended to the file with these times, in nanoseconds.
func (s *stub) noteTime() error {
	return s.add("spans", fmt.Sprintf("%s\t%s\t%d\t%d\n", s.project, s.stack, s.start.UnixNano(), time.Now().UnixNano()))
}

func (s *stub) add(file, line string) error {
	log, err := os.OpenFile(filepath.Join(s.dir, file), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	_, err = log.WriteString(line)
	return err
}

// report writes those events of the engine that the agent reads.
func (s *stub) report(command, path string) error {
	log, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer log.Close()
	type object = map[string]any
	operation := map[string]string{"up": "update", "destroy": "delete"}[command]
	metadata := object{
		"op": operation, "type": "pulumi:pulumi:Stack",
		"urn": fmt.Sprintf("urn:pulumi:%s::%s::pulumi:pulumi:Stack::%s-%s", s.stack, s.project, s.project, s.stack),
		"new": object{"outputs": object{"value": s.value}},
	}
	encoder := json.NewEncoder(log)
	for _, event := range []object{
		{"resourcePreEvent": object{"metadata": metadata}},
		{"resOutputsEvent": object{"metadata": metadata}},
		{"summaryEvent": object{"resourceChanges": object{operation: 1}}},
	} {
		if err := encoder.Encode(event); err != nil {
			return err
		}
	}
	return nil
}

// flagOf returns the value of a flag, which follows the flag or an equals sign.
func flagOf(args []string, name string) string {
	for i, arg := range args {
		if value, is := strings.CutPrefix(arg, name+"="); is {
			return value
		}
		if arg == name && i+1 < len(args) {
			return args[i+1]
		}
	}
	return ""
}

func first(pattern *regexp.Regexp, content []byte) string {
	if match := pattern.FindSubmatch(content); match != nil {
		return string(match[1])
	}
	return ""
}
