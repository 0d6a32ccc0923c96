// Package postgres runs a real PostgreSQL server from Debian's package on loopback, with its own database files. It uses nothing of a
// PostgreSQL installation on the machine but the programs.
package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
	"github.com/stack-controller/stack-controller/tests/framework/supervise"
)

const (
	// User is the only user, who may do everything.
	User = "pulumi"
	// Database is a database that exists from the beginning.
	Database = "postgres"

	// name is the name of the server's log.
	name = "postgres"
	// account is the account that runs the server if root runs the test, because PostgreSQL refuses to run as root. The account owns
	// nothing else.
	account = "nobody"
	// patterns matches the server programs of all major versions that Debian packages.
	patterns = "/usr/lib/postgresql/*/bin/postgres"
	// prepareTimeout bounds the creation of the database files, which takes about two seconds.
	prepareTimeout = time.Minute
	// stopGrace bounds an orderly stop of the server.
	stopGrace = 10 * time.Second
)

// ErrMissing means that PostgreSQL is not installed.
var ErrMissing = errors.New("there is no PostgreSQL server here: install Debian's package postgresql")

// Server is a database server.
type Server struct {
	// Address is the host and port. They stay the same after a restart.
	Address string
	// Password is the password of User. The server accepts no connection without it.
	Password string

	controlPlane *controlplane.ControlPlane
	programs     string // the directory of PostgreSQL's programs
	data         string
	process      *supervise.Process
}

// Start creates a database and starts a server for it. The server ends at the latest with the control plane.
func Start(ctx context.Context, cp *controlplane.ControlPlane) (*Server, error) {
	found, err := filepath.Glob(patterns)
	if err != nil || len(found) == 0 {
		return nil, errors.Join(ErrMissing, err)
	}
	address, err := cp.FreeAddress()
	if err != nil {
		return nil, err
	}
	s := &Server{Address: address, Password: rand.Text(), controlPlane: cp, programs: filepath.Dir(found[len(found)-1])}
	// The account that runs the server cannot enter the control plane's directory.
	if s.data, err = os.MkdirTemp("", "postgres-"); err != nil {
		return nil, fmt.Errorf("create the directory of PostgreSQL: %w", err)
	}
	if err := cp.Supervisor().RemoveAtEnd(s.data); err != nil {
		return nil, errors.Join(err, os.RemoveAll(s.data))
	}
	if err := s.prepare(ctx); err != nil {
		return nil, err
	}
	return s, s.Resume(ctx)
}

// prepare creates the database files.
func (s *Server) prepare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, prepareTimeout)
	defer cancel()
	passwordFile := filepath.Join(s.data, "password")
	if err := os.WriteFile(passwordFile, []byte(s.Password), 0o600); err != nil {
		return fmt.Errorf("write the password of PostgreSQL: %w", err)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(s.programs, "initdb"),
		"--pgdata="+s.files(), "--username="+User, "--pwfile="+passwordFile, "--auth=scram-sha-256",
		"--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions")
	cmd.Dir, cmd.Env = s.data, []string{"PATH=" + os.Getenv("PATH")}
	if os.Geteuid() == 0 {
		uid, gid, err := ids()
		if err != nil {
			return err
		}
		if err := errors.Join(os.Chown(s.data, uid, gid), os.Chown(passwordFile, uid, gid)); err != nil {
			return fmt.Errorf("hand the directory of PostgreSQL over: %w", err)
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid), NoSetGroups: false}}
	}
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("create the database: %w\n%s", err, output)
	}
	return os.Remove(passwordFile)
}

// Resume starts the server again after Stop.
func (s *Server) Resume(ctx context.Context) error {
	host, port, err := net.SplitHostPort(s.Address)
	if err != nil {
		return err
	}
	path := filepath.Join(s.programs, "postgres")
	args := []string{"-D", s.files(), "-h", host, "-p", port, "-c", "unix_socket_directories=", "-c", "fsync=off", "-c", "jit=off"}
	if os.Geteuid() == 0 {
		uid, gid, err := ids()
		if err != nil {
			return err
		}
		path, args = "/usr/bin/env", append([]string{
			"--chdir=" + s.data, "setpriv", "--reuid=" + strconv.Itoa(uid), "--regid=" + strconv.Itoa(gid), "--clear-groups", path,
		}, args...)
	}
	s.process, err = s.controlPlane.StartServer(ctx, controlplane.Server{Name: name, Path: path, Args: args, Ready: s.ready})
	return err
}

// ready asks the server as a client does. It needs no password for that.
func (s *Server) ready(ctx context.Context) error {
	host, port, err := net.SplitHostPort(s.Address)
	if err != nil {
		return err
	}
	return exec.CommandContext(ctx, filepath.Join(s.programs, "pg_isready"), "--quiet", "--host="+host, "--port="+port, "--dbname="+Database).Run()
}

// Stop stops the server. Its data are kept.
func (s *Server) Stop() error {
	// With SIGINT the server does not wait for its clients.
	if err := s.process.Signal(syscall.SIGINT); err != nil {
		return err
	}
	return s.process.Stop(stopGrace)
}

func (s *Server) files() string { return filepath.Join(s.data, "database") }

// ids returns the user and group IDs of account.
func ids() (uid, gid int, err error) {
	found, err := user.Lookup(account)
	if err != nil {
		return 0, 0, fmt.Errorf("find the account of PostgreSQL: %w", err)
	}
	if uid, err = strconv.Atoi(found.Uid); err == nil {
		gid, err = strconv.Atoi(found.Gid)
	}
	return uid, gid, err
}
