package operation

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/cli"
	"github.com/stack-controller/stack-controller/internal/file"
	"github.com/stack-controller/stack-controller/internal/plaintext"
)

// An operation can log in to Pulumi Cloud by OIDC: the CLI exchanges a token of the workspace's ServiceAccount for an access token, which
// is valid for a limited time and cannot be renewed. This happens before each operation, in the directory of logins that ends with it.

const (
	// loginTimeout bounds the login. The CLI repeats a request that does not reach Pulumi Cloud.
	loginTimeout = 2 * time.Minute
	// maxToken bounds the file with the token of the ServiceAccount, in bytes.
	maxToken = 64 << 10
	// maxClaim bounds what a message shows of the issuer and the subject of that token, in bytes.
	maxClaim = 256

	// helperVariable names a program that has the credentials of the CLI. With one, the CLI refuses to exchange a token.
	helperVariable = "PULUMI_CREDENTIAL_HELPER"
	// storeVariable says how the CLI keeps the access token. The agent has to read it, to hide it.
	storeVariable = "PULUMI_CREDENTIAL_STORE"
	// cloudVariable has the URL of Pulumi Cloud if nothing names a backend, and defaultCloud is that URL without the variable.
	cloudVariable = "PULUMI_API"
	defaultCloud  = "https://api.pulumi.com"
)

// session is a login that succeeded.
type session struct {
	// expires is when the access token expires.
	expires time.Time
}

// claims are what Pulumi Cloud decides on, of the token of a ServiceAccount.
type claims struct {
	Issuer  string `json:"iss"`
	Subject string `json:"sub"`
}

// checkLogin refuses a login that cannot work, before any process starts.
func (o *operation) checkLogin(context.Context) error {
	if o.request.GetLogin() == nil {
		return nil
	}
	if problem := cli.UnknownFlag(o.runner.cli.Version, o.loginArguments()); problem != "" {
		return configInvalid("%s", problem)
	}
	if o.env[accessTokenVariable] != "" {
		return configInvalid("the environment of the pod has %s, and pulumiCloud.oidc needs that it is not set: remove the variable, or pulumiCloud", accessTokenVariable)
	}
	if o.selfManaged() {
		return configInvalid("pulumiCloud.oidc is a login to Pulumi Cloud, and the stack has another backend: use the URL of Pulumi Cloud, or remove pulumiCloud")
	}
	return nil
}

// loginEnvironment makes the CLI keep its login in the directory of logins only.
func (o *operation) loginEnvironment() {
	if o.env[accessTokenVariable] == "" {
		delete(o.env, accessTokenVariable)
	}
	if o.env[helperVariable] == "" {
		o.env[helperVariable] = "none"
	}
	o.env[storeVariable] = "plaintext"
}

// loginArguments returns the command that logs in. The token itself is never an argument, which everybody on the machine can read.
func (o *operation) loginArguments() []string {
	wanted := o.request.GetLogin()
	args := []string{"login", cmp.Or(o.backendURL(), o.env[cloudVariable], defaultCloud),
		"--oidc-token=file://" + wanted.GetTokenFile(), "--oidc-org=" + wanted.GetOrganization()}
	if wanted.GetTeam() != "" {
		args = append(args, "--oidc-team="+wanted.GetTeam())
	}
	if wanted.GetUser() != "" {
		args = append(args, "--oidc-user="+wanted.GetUser())
	}
	if wanted.GetExpiration() != nil {
		args = append(args, "--oidc-expiration="+wanted.GetExpiration().AsDuration().String())
	}
	return args
}

// login logs in to Pulumi Cloud if the request says so.
func (o *operation) login(ctx context.Context) error {
	if o.request.GetLogin() == nil {
		return nil
	}
	token, err := o.readToken()
	if err != nil {
		return err
	}
	o.report.update(func(op *agentpb.Operation) { op.Message = "logging in to Pulumi Cloud" })
	res, err := o.helper(ctx, loginTimeout, cli.Invocation{Args: o.loginArguments()})
	if err != nil {
		return fmt.Errorf("cannot log in to Pulumi Cloud by OIDC: %w", err)
	}
	if res.Code != 0 {
		return o.loginFailure(res, token)
	}
	return o.keepLogin()
}

// readToken reads who the token of the ServiceAccount is for, and hides the token. The kubelet replaces the token in time.
func (o *operation) readToken() (claims, error) {
	path := o.request.GetLogin().GetTokenFile()
	content, err := file.Read(path, maxToken)
	if err != nil {
		return claims{}, unauthenticated("cannot log in to Pulumi Cloud by OIDC: the pod has no token of its ServiceAccount in %s: %s", path, file.WithoutPath(err))
	}
	token := strings.TrimSpace(string(content))
	o.redactor.Add(token)
	parts := strings.Split(token, ".")
	var known claims
	if len(parts) == 3 {
		payload, err := base64.RawURLEncoding.DecodeString(parts[1])
		if err == nil && json.Unmarshal(payload, &known) == nil && known.Subject != "" {
			return known, nil
		}
	}
	return claims{}, unauthenticated("cannot log in to Pulumi Cloud by OIDC: %s has no token of a ServiceAccount", path)
}

func unauthenticated(format string, args ...any) *failure {
	return failed(agentpb.FailureReason_FAILURE_REASON_UNAUTHENTICATED, format, args...)
}

// exchangeFailed matches what the CLI prints when the token was not exchanged, with the answer of Pulumi Cloud if there is one.
var exchangeFailed = regexp.MustCompile(`(?s)OIDC token exchange failed: (\{.*\})`)

// exchangeAnswer is how Pulumi Cloud refuses an exchange: with a status, or as OAuth defines it.
type exchangeAnswer struct {
	Code        int    `json:"code"`
	Message     string `json:"message"`
	Error       string `json:"error"`
	Description string `json:"error_description"`
}

// refused reports whether the same exchange would be refused again. That is not so when the service is overloaded or broken.
func (a exchangeAnswer) refused() bool {
	const requestTimeout, tooManyRequests = 408, 429
	if a.Code != 0 {
		return a.Code >= 400 && a.Code < 500 && a.Code != requestTimeout && a.Code != tooManyRequests
	}
	return a.Error != "" && a.Error != "server_error" && a.Error != "temporarily_unavailable"
}

// loginFailure says why the CLI did not log in, and what Pulumi Cloud has to trust if it refused the token.
func (o *operation) loginFailure(res cli.Result, token claims) *failure {
	var answer exchangeAnswer
	if found := exchangeFailed.FindStringSubmatch(plaintext.Strip(res.Stderr)); found != nil {
		_ = json.Unmarshal([]byte(found[1]), &answer) // other text is shown as it is
	}
	f := classifyAs(res, agentpb.FailureReason_FAILURE_REASON_UPDATE_FAILED, "cannot log in to Pulumi Cloud by OIDC")
	switch {
	case answer.refused():
		f.message = cmp.Or(answer.Message, answer.Description, answer.Error)
	case answer != exchangeAnswer{}:
		f.reason = agentpb.FailureReason_FAILURE_REASON_UPDATE_FAILED // the answer of a service that is not well
		return f
	case f.reason != agentpb.FailureReason_FAILURE_REASON_UNAUTHENTICATED:
		return f
	}
	org, most := o.request.GetLogin().GetOrganization(), ""
	if expiration := o.request.GetLogin().GetExpiration(); expiration != nil {
		most = fmt.Sprintf(", and a maximum expiration of at least %s", expiration.AsDuration())
	}
	return unauthenticated("Pulumi Cloud refused the login by OIDC as %s: %s. The organization %s needs an OIDC issuer %s with a policy that allows "+
		"%s for the audience urn:pulumi:org:%s and the subject %s%s",
		o.identity(), f.message, org, plaintext.Cut(token.Issuer, maxClaim), o.identity(), org, plaintext.Cut(token.Subject, maxClaim), most)
}

// identity names whose access token the operation uses.
func (o *operation) identity() string {
	wanted := o.request.GetLogin()
	switch of := "organization " + wanted.GetOrganization(); {
	case wanted.GetTeam() != "":
		return "team " + wanted.GetTeam() + " of the " + of
	case wanted.GetUser() != "":
		return "user " + wanted.GetUser() + " of the " + of
	default:
		return of
	}
}

// credentials is the file in which the CLI keeps its logins, as far as it is needed here.
type credentials struct {
	AccessTokens map[string]string `json:"accessTokens"`
	Accounts     map[string]struct {
		AccessToken string `json:"accessToken"`
		Token       struct {
			Expires time.Time `json:"expiresAt"`
		} `json:"tokenInformation"`
	} `json:"accounts"`
}

// keepLogin hides the access token, and notes when it expires. Pulumi Cloud may let it expire earlier than the request says.
func (o *operation) keepLogin() error {
	content, err := file.Read(filepath.Join(o.loginsDir(), credentialsFile), maxCredentials)
	if err != nil {
		return fmt.Errorf("read the login of the pulumi CLI: %w", file.WithoutPath(err))
	}
	var known credentials
	if err := json.Unmarshal(content, &known); err != nil || len(known.Accounts) == 0 {
		return errors.New("the pulumi CLI has logged in, but keeps no access token that could be hidden")
	}
	for _, token := range known.AccessTokens {
		o.redactor.Add(token)
	}
	for _, account := range known.Accounts {
		o.redactor.Add(account.AccessToken)
		o.session = &session{expires: account.Token.Expires}
	}
	return nil
}

// noAccess matches what the CLI prints when Pulumi Cloud, or the CLI itself, does not accept the access token: before it has begun, and while
// the engine is at work. What it says misleads whose operations log in by themselves.
var noAccess = regexp.MustCompile("PULUMI_ACCESS_TOKEN must be set|invalid access token|No credentials provided or are invalid|" +
	`\[401\]|\b401 Unauthorized|this command requires logging in`)

// explainLogin replaces the error of an operation whose access token is not accepted, or no longer.
func (o *operation) explainLogin(err error) error {
	f, ok := errors.AsType[*failure](err)
	if o.session == nil || !ok || !noAccess.MatchString(f.message) {
		return err
	}
	if expires := o.session.expires; !expires.IsZero() && !time.Now().Before(expires) {
		return unauthenticated("the access token of the login by OIDC to Pulumi Cloud as %s expired at %s, before the operation ended: raise pulumiCloud.oidc.expiration, "+
			"and the maximum of the issuer in Pulumi Cloud, to more than the operation takes, or lower its timeout. Pulumi says: %s",
			o.identity(), expires.UTC().Format(time.RFC3339), f.message)
	}
	if f.reason == agentpb.FailureReason_FAILURE_REASON_UNAUTHENTICATED {
		return unauthenticated("Pulumi Cloud does not accept the access token of the login by OIDC as %s: %s", o.identity(), f.message)
	}
	return err
}
