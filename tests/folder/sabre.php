<?php
// sabre/dav over plain folders. access.json beside this file lists who may enter what:
// [{"base": "/north", "user": "north", "password": "...", "folder": "/where/it/lies"}, ...]

require '/usr/share/php/Sabre/autoload.php';

list($user, $password) = array_pad(
    explode(':', base64_decode(substr($_SERVER['HTTP_AUTHORIZATION'] ?? '', strlen('Basic '))), 2), 2, '');
$path = rawurldecode(strtok($_SERVER['REQUEST_URI'], '?'));

foreach (json_decode(file_get_contents(__DIR__ . '/access.json')) as $access) {
    $isBelow = strpos("$path/", "$access->base/") === 0;
    if ($isBelow && $access->user === $user && hash_equals($access->password, $password)) {
        $server = new Sabre\DAV\Server(new Sabre\DAV\FS\Directory($access->folder));
        $server->setBaseUri("$access->base/");
        $locks = new Sabre\DAV\Locks\Backend\File(__DIR__ . '/tmp/locks-' . basename($access->folder));
        $server->addPlugin(new Sabre\DAV\Locks\Plugin($locks));
        $server->exec();
        exit;
    }
}
http_response_code(401);
header('WWW-Authenticate: Basic realm="dav"');
