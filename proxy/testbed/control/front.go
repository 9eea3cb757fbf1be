package main

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"sync"
)

// front is where the control server listens, http and https as the real one does. Tests take it away and bring it back.
type front struct {
	handler   http.Handler
	identity  tls.Certificate
	addresses []string

	mu        sync.Mutex
	listeners []net.Listener
	// open are the accepted connections: the handshake hijacks them, so that http.Server would not close them.
	open map[net.Conn]struct{}
}

// resume listens; nothing changes if it does already.
func (f *front) resume() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.listeners != nil {
		return nil
	}
	f.open = map[net.Conn]struct{}{}
	config := &tls.Config{Certificates: []tls.Certificate{f.identity}}
	for _, address := range f.addresses {
		for _, port := range []string{"80", "443"} {
			listener, err := net.Listen("tcp", net.JoinHostPort(address, port))
			if err != nil {
				return err
			}
			f.listeners = append(f.listeners, listener)
			var served net.Listener = &tracking{Listener: listener, front: f}
			if port == "443" {
				served = tls.NewListener(served, config)
			}
			// Ends when its listener is closed.
			go http.Serve(served, f.handler)
		}
	}
	return nil
}

// pause closes the listeners and every connection: the server is gone.
func (f *front) pause() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, listener := range f.listeners {
		listener.Close()
	}
	f.listeners = nil
	for conn := range f.open {
		conn.Close()
	}
}

// acmeRoot fetches the root certificate of the ACME server beside us, from its management port.
func (f *front) acmeRoot(port string) (string, error) {
	// It shows our own certificate; tests' programs have no HTTP client that could be told so.
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	response, err := client.Get("https://" + net.JoinHostPort(f.addresses[0], port) + "/roots/0")
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	root, err := io.ReadAll(response.Body)
	return string(root), err
}

// tracking remembers the connections that it accepted until they are closed.
type tracking struct {
	net.Listener
	front *front
}

func (l *tracking) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	tracked := &trackedConn{Conn: conn, front: l.front}
	l.front.mu.Lock()
	defer l.front.mu.Unlock()
	if l.front.listeners == nil {
		// Accepted while the server was taken away.
		conn.Close()
	} else {
		l.front.open[tracked.Conn] = struct{}{}
	}
	return tracked, nil
}

type trackedConn struct {
	net.Conn
	front *front
}

func (c *trackedConn) Close() error {
	c.front.mu.Lock()
	delete(c.front.open, c.Conn)
	c.front.mu.Unlock()
	return c.Conn.Close()
}
