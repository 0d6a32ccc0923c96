package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"
	"slices"
	"strconv"

	"github.com/joho/godotenv"

	"github.com/stack-controller/stack-controller/internal/file"
)

const (
	// maxEnvironmentFile bounds the file of environment variables, in bytes.
	maxEnvironmentFile = 1 << 20
	// maxStatement is how many lines one variable of a malformed file may have at most.
	maxStatement = 100
	// minSecret is the length in bytes from which a value of the file counts as a secret. Hiding shorter values ("true", a region) would make
	// ordinary text unreadable.
	minSecret = 12
	// memoryLimit is the variable with the soft memory limit of the agent in bytes. leastMemory is the lowest limit that is used: with less
	// memory, the agent would only collect garbage.
	memoryLimit, leastMemory = "AGENT_MEMLIMIT", 32 << 20
)

// loadEnvironment sets the variables in the file that are not set yet. The file has lines KEY=VALUE, with quotes, comments and export as in
// a shell. A file that does not exist has no variables. Errors name variables and lines, never a value; after an error in the format of the
// file, nothing is set. loadEnvironment returns the values that may be secret, because such a file mostly contains credentials.
func loadEnvironment(path string) (secrets []string, err error) {
	content, err := file.Read(path, maxEnvironmentFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, file.ErrTooLarge):
		return nil, fmt.Errorf("the file of environment variables %s is larger than %d bytes", path, maxEnvironmentFile)
	case err != nil:
		return nil, fmt.Errorf("read the file of environment variables: %w", err)
	}
	if before, _, ok := bytes.Cut(content, []byte{0}); ok {
		return nil, fmt.Errorf("the file of environment variables %s is malformed in line %d: it has a null byte", path, 1+bytes.Count(before, []byte("\n")))
	}
	variables, err := parseEnvironment(content)
	if err != nil {
		// The parser's own error quotes the text that it cannot parse.
		return nil, fmt.Errorf("the file of environment variables %s is malformed from line %d on: want lines KEY=VALUE", path, malformedLine(content))
	}
	for name, value := range variables {
		if len(value) >= minSecret {
			secrets = append(secrets, value)
		}
		if _, set := os.LookupEnv(name); set {
			continue
		}
		if err := os.Setenv(name, value); err != nil {
			return nil, fmt.Errorf("set the environment variable %q of %s: not a possible name", name, path)
		}
	}
	return secrets, nil
}

func parseEnvironment(content []byte) (map[string]string, error) {
	variables, err := godotenv.UnmarshalBytes(content)
	if err != nil {
		return nil, err
	}
	if _, nameless := variables[""]; nameless {
		return nil, errors.New("a variable has no name")
	}
	return variables, nil
}

// malformedLine returns the line, counted from 1, at which the first variable that cannot be parsed begins.
func malformedLine(content []byte) int {
	lines := bytes.SplitAfter(content, []byte("\n"))
	for start := 0; start < len(lines); {
		length := statementLength(lines[start:])
		if length == 0 {
			return start + 1
		}
		start += length
	}
	return len(lines)
}

// statementLength returns how many lines the first variable takes; 0 if no number of lines can be parsed.
func statementLength(lines [][]byte) int {
	for length := 1; length <= min(len(lines), maxStatement); length++ {
		if _, err := parseEnvironment(slices.Concat(lines[:length]...)); err == nil {
			return length
		}
	}
	return 0
}

// limitMemory sets the soft memory limit of the agent to the memory that its container requests.
func limitMemory() error {
	value := os.Getenv(memoryLimit)
	if value == "" {
		return nil
	}
	limit, err := strconv.ParseInt(value, 10, 64)
	if err != nil || limit < 0 {
		return fmt.Errorf("environment variable %s is %q, want a number of bytes", memoryLimit, value)
	}
	if limit > 0 {
		debug.SetMemoryLimit(max(limit, leastMemory))
	}
	return nil
}
